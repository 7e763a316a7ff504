// The file of tenants' limits (--tenants): which tenant may use how much. It holds no secrets.
//
//   {
//     "default": {"max_calls": 32, "tokens_per_second": 2000, "burst_tokens": 120000},
//     "tenants": {"acme": {"weight": 4, "max_calls": 128}, "trial": {"max_kv_tokens": 8192}}
//   }
//
// Both parts and every field may be left out: a tenant has what `default` says, which has what
// TenantLimit says.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "service/limits/tenant_limit.h"

namespace eta {

struct LimitTable {
  TenantLimit others;  // of tenants that are not named
  std::map<std::string, TenantLimit, std::less<>> named;
};

inline constexpr size_t kMaxLimitsBytes = size_t{2} << 20;
inline constexpr size_t kMaxLimitedTenants = 10'000;

// INVALID_ARGUMENT naming the field by its path,
// as in tenants.acme.max_calls; also for a field that is not known, or is there twice.
absl::StatusOr<LimitTable> ParseLimits(std::string_view text);

}  // namespace eta
