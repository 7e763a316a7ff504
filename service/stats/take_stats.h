// One answer of Stats or WatchStats: which figures a call may see, and where they come from.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "eta/v1/stats.pb.h"
#include "service/calls/service_context.h"
#include "service/identity/caller.h"

namespace eta {

// Who may ask; with the first of them for the own tenant's figures only.
inline constexpr Roles kStatsRoles = {Role::kStats, Role::kStatsAll};

struct StatsQuery {
  bool layers = false;
  std::optional<Tenant> tenant;  // only its figures; absent: everybody's
};

// What `caller` gets who asks for the figures of `tenant`, or for all that it may see.
// INVALID_ARGUMENT (`tenant`) for what is no name; PERMISSION_DENIED (ADMIN_REQUIRED) for another
// tenant's figures.
absl::StatusOr<StatsQuery> MakeStatsQuery(const std::optional<std::string>& tenant, bool layers,
                                          const Caller& caller);

// Any thread. Takes the locks of what it reads one after another, each briefly.
v1::Stats TakeStats(const StatsQuery& query, const ServiceContext& service);

}  // namespace eta
