#include "service/stats/stats_query.h"

#include <utility>

#include "engine/base/error.h"

namespace eta {

absl::StatusOr<StatusQuery> MakeStatsQuery(const std::optional<std::string>& tenant, bool layers,
                                           const Caller& caller) {
  StatusQuery query{.layers = layers};
  const bool all = caller.roles.Has(Role::kStatsAll);
  if (tenant) {
    auto named = Tenant::Parse(*tenant);
    if (!named.ok()) {
      return InvalidField("tenant", "must be 1 to 255 printable ASCII characters without spaces");
    }
    query.tenant = *std::move(named);
  } else if (!all) {
    query.tenant = caller.tenant;
  }
  if (!all && query.tenant != caller.tenant) {
    return MakeError(absl::StatusCode::kPermissionDenied,
                     "tenant: the figures of another tenant are the operator's",
                     {.reason = "ADMIN_REQUIRED"});
  }
  query.latencies = !query.tenant;
  return query;
}

}  // namespace eta
