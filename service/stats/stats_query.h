// Which statistics a call of StatsService may see.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "service/identity/caller.h"
#include "service/stats/status_reader.h"

namespace eta {

// Who may ask; with the first of them for the own tenant's statistics only.
inline constexpr Roles kStatsRoles = {Role::kStats, Role::kStatsAll};

// The query of a caller that asks for `tenant`, or for all that it may see. INVALID_ARGUMENT
// (`tenant`) for what is no name; PERMISSION_DENIED (ADMIN_REQUIRED) for another tenant.
absl::StatusOr<StatusQuery> MakeStatsQuery(const std::optional<std::string>& tenant, bool layers,
                                           const Caller& caller);

}  // namespace eta
