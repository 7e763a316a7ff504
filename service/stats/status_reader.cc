#include "service/stats/status_reader.h"

#include <map>
#include <string>
#include <utility>

#include "service/connections/acceptor.h"

namespace eta {
namespace {

std::vector<TenantStatus> ReadTenants(const StatusQuery& query, const ServiceContext& service,
                                      const std::vector<RunningCalibration>& calibrations) {
  std::vector<TenantUse> uses;
  if (query.tenant) {
    uses.push_back(service.ledger.UseOf(*query.tenant));
  } else {
    uses = service.ledger.Uses();
  }
  std::map<std::string, TenantQueue> queues;
  for (const TenantQueue& queue : service.engine.Tenants()) queues[queue.tenant] = queue;
  std::map<std::string, int32_t> running;
  for (const RunningCalibration& calibration : calibrations) ++running[calibration.tenant.id()];
  std::vector<TenantStatus> tenants;
  for (TenantUse& use : uses) {
    TenantStatus status{.use = std::move(use)};
    const std::string& name = status.use.tenant;
    const auto id = Tenant::Parse(name);
    status.named = id.ok() && service.limits.Names(*id);
    if (id.ok() && service.store != nullptr) status.stored = service.store->Use(*id);
    if (const auto queue = queues.find(name); queue != queues.end()) status.queue = queue->second;
    if (const auto count = running.find(name); count != running.end()) {
      status.calibrations = count->second;
    }
    tenants.push_back(std::move(status));
  }
  return tenants;
}

QueueStatus QueueOf(const WorkerPool& pool) {
  return {.waiting = static_cast<int64_t>(pool.waiting()),
          .max_waiting = static_cast<int64_t>(pool.max_waiting())};
}

void ReadProfiles(const StatusQuery& query, const ServiceContext& service, ServerStatus& status) {
  if (service.profiles == nullptr) return;
  status.profiles = service.profiles->Loaded(query.tenant);
  status.profile_lookups = {.waiting = static_cast<int64_t>(service.profiles->waiting()),
                            .max_waiting = static_cast<int64_t>(service.profiles->max_waiting())};
  const std::string& preset = service.options.default_profile;
  if (!preset.empty()) {
    const auto reference = ParseProfileReference("default_profile", preset);
    if (reference.ok()) status.default_profile_tenants = service.profiles->TenantsWith(*reference);
  }
  if (service.store == nullptr) return;
  status.store = {.up = service.store->Health().ok(), .cache = service.profiles->Status()};
}

}  // namespace

ServerStatus ReadServerStatus(const StatusQuery& query, const ServiceContext& service) {
  ServerStatus status;
  status.version = ETA_VERSION;
  status.tenant = query.tenant;
  status.telemetry.started = Clock::now();
  if (service.telemetry) {
    status.telemetry =
        service.telemetry({.layers = query.layers,
                           .latencies = query.latencies,
                           .tenant = query.tenant ? query.tenant->id() : std::string()});
  }
  status.info = service.engine.info();
  status.engine = service.engine.Snapshot();
  status.state = service.state.Of(status.engine);
  status.calibrations = service.calibrations.Running(query.tenant);
  status.tenants = ReadTenants(query, service, status.calibrations);
  ReadProfiles(query, service, status);
  if (query.process) status.process = ReadProcessUsage();
  if (!query.tenant) {
    status.devices = service.engine.Devices();
    status.store_calls = QueueOf(service.store_calls);
    status.tokenizer_calls = QueueOf(service.tokenizer_calls);
    status.format_calls = QueueOf(service.format_calls);
    status.connections = service.acceptor.Usage();
    status.memory = {.pressure = service.memory.level(),
                     .used = service.memory.FractionUsed(),
                     .streams_ended = service.streams.ended()};
    status.answers_cut_off = service.answers_cut_off;
  }
  status.time = std::chrono::system_clock::now();
  status.now = Clock::now();
  return status;
}

}  // namespace eta
