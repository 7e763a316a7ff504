#include "service/stats/take_tenants.h"

#include <map>
#include <string>
#include <utility>

#include "service/calibrate/calibrations.h"

namespace eta {

std::vector<TenantHolding> TakeTenants(const ServiceContext& service,
                                       const std::optional<Tenant>& tenant) {
  std::vector<TenantUse> uses;
  if (tenant) {
    uses.push_back(service.ledger.UseOf(*tenant));
  } else {
    uses = service.ledger.Uses();
  }
  std::map<std::string, TenantQueue> queues;
  for (const TenantQueue& queue : service.engine.Tenants()) queues[queue.tenant] = queue;
  std::map<std::string, int32_t> calibrations;
  for (const RunningCalibration& running : service.calibrations.Running(tenant)) {
    ++calibrations[running.tenant.id()];
  }
  std::vector<TenantHolding> holdings;
  for (TenantUse& use : uses) {
    TenantHolding holding{.use = std::move(use)};
    const auto id = Tenant::Parse(holding.use.tenant);
    holding.named = id.ok() && service.limits.Names(*id);
    if (id.ok() && service.store != nullptr) holding.stored = service.store->Use(*id);
    const auto queue = queues.find(holding.use.tenant);
    if (queue != queues.end()) holding.queue = queue->second;
    const auto running = calibrations.find(holding.use.tenant);
    if (running != calibrations.end()) holding.calibrations = running->second;
    holdings.push_back(std::move(holding));
  }
  return holdings;
}

}  // namespace eta
