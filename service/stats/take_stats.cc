#include "service/stats/take_stats.h"

#include <chrono>
#include <utility>

#include "engine/base/error.h"
#include "service/calibrate/calibrations.h"
#include "service/connections/acceptor.h"
#include "service/profiles/profile_cache.h"
#include "service/stats/convert_stats.h"
#include "service/stats/take_figures.h"
#include "service/stats/take_tenants.h"

namespace eta {

absl::StatusOr<StatsQuery> MakeStatsQuery(const std::optional<std::string>& tenant, bool layers,
                                          const Caller& caller) {
  StatsQuery query{.layers = layers, .tenant = std::nullopt};
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
  return query;
}

v1::Stats TakeStats(const StatsQuery& query, const ServiceContext& service) {
  StatsFacts facts;
  facts.tenant = query.tenant;
  facts.version = ETA_VERSION;
  facts.telemetry.started = Clock::now();
  if (service.telemetry) {
    facts.telemetry = service.telemetry(
        {.layers = query.layers, .tenant = query.tenant ? query.tenant->id() : std::string()});
  }
  facts.engine = service.engine.Snapshot();
  facts.state = service.state.Of(facts.engine);
  if (!query.tenant) facts.devices = service.engine.Devices();
  if (service.profiles != nullptr) {
    facts.profiles = service.profiles->Loaded(query.tenant);
    facts.profile_lookups_waiting = static_cast<int32_t>(service.profiles->waiting());
    facts.max_profile_lookups_waiting = static_cast<int32_t>(service.profiles->max_waiting());
  }
  facts.calibrations = service.calibrations.Running(query.tenant);
  facts.holdings = TakeTenants(service, query.tenant);
  facts.pressure = TakePressure(service);
  facts.store_calls_waiting = static_cast<int32_t>(service.store_calls.waiting());
  facts.max_store_calls_waiting = static_cast<int32_t>(service.store_calls.max_waiting());
  if (!query.tenant) facts.connections = service.acceptor.Figures();
  facts.time = std::chrono::system_clock::now();
  facts.now = Clock::now();
  return ToMessage(facts, service.engine.info());
}

}  // namespace eta
