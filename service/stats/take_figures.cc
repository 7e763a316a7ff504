#include "service/stats/take_figures.h"

#include <algorithm>
#include <utility>

#include "service/calibrate/calibrations.h"
#include "service/connections/acceptor.h"
#include "service/profiles/profile_cache.h"
#include "service/stats/take_tenants.h"

namespace eta {
namespace {

StoreFigures TakeStoreFigures(const ProfileStore& store, const ProfileCache& cache) {
  const ProfileCacheFigures cached = cache.Figures();
  const Clock::time_point now = Clock::now();
  StoreFigures figures;
  figures.up = store.Health().ok();
  figures.cache_bytes = cached.bytes;
  figures.reloads_succeeded = cached.reads;
  figures.reloads_failed = cached.failed_reads;
  if (cached.last_read) figures.last_reload_age = now - *cached.last_read;
  if (cached.oldest) figures.staleness = std::max(now - *cached.oldest, Clock::duration(0));
  for (LoadedProfile& profile : cache.Loaded()) {
    figures.profiles.push_back({.tenant = profile.tenant.id(),
                                .name = std::move(profile.name),
                                .version = profile.version,
                                .digest = std::move(profile.checksum),
                                .head_density = profile.head_density,
                                .union_density = profile.union_density});
  }
  return figures;
}

}  // namespace

PressureFigures TakePressure(const ServiceContext& service) {
  return {.level = service.memory.level(),
          .memory_used = service.memory.FractionUsed(),
          .streams_ended = service.streams.ended(),
          .answers_cut_off = service.answers_cut_off};
}

ServerFigures TakeFigures(const ServiceContext& service) {
  ServerFigures figures;
  figures.info = service.engine.info();
  figures.engine = service.engine.Snapshot();
  figures.state = service.state.Of(figures.engine);
  figures.devices = service.engine.Devices();
  figures.calibrations = static_cast<int32_t>(service.calibrations.Running().size());
  figures.pressure = TakePressure(service);
  for (const TenantHolding& holding : TakeTenants(service)) {
    figures.tenants.push_back(
        {.tenant = holding.use.tenant,
         .named = holding.named,
         .max_calls = holding.use.limit.max_calls,
         .calls = holding.use.calls,
         .burst_tokens = holding.use.limit.burst_tokens,
         .tokens_left = holding.use.tokens_left,
         .max_kv_tokens = holding.use.limit.max_kv_tokens,
         .kv_tokens = holding.queue.kv_tokens,
         .running = holding.queue.running,
         .waiting = holding.queue.waiting,
         .paused = holding.queue.paused,
         .tokens_per_second = holding.use.limit.tokens_per_second,
         .weight = holding.use.limit.weight,
         .max_calibrations = holding.use.limit.max_calibrations,
         .calibrations = holding.calibrations,
         .max_profile_versions = holding.use.limit.profiles.versions,
         .max_profile_bytes = holding.use.limit.profiles.bytes,
         .max_profile_versions_ever = holding.use.limit.profiles.versions_ever,
         .stored = holding.stored});
  }
  figures.store_calls_waiting = static_cast<int64_t>(service.store_calls.waiting());
  figures.max_store_calls_waiting = static_cast<int64_t>(service.store_calls.max_waiting());
  figures.connections = service.acceptor.Figures();
  if (service.store != nullptr && service.profiles != nullptr) {
    figures.store = TakeStoreFigures(*service.store, *service.profiles);
    figures.profile_lookups_waiting = static_cast<int64_t>(service.profiles->waiting());
    figures.max_profile_lookups_waiting = static_cast<int64_t>(service.profiles->max_waiting());
  }
  return figures;
}

}  // namespace eta
