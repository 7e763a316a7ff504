// What the calls of a server share, made once: limits, threads, caches, and who is there.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/base/threads/task_thread.h"
#include "engine/base/threads/worker_pool.h"
#include "engine/front/engine.h"
#include "service/calibrate/calibrations.h"
#include "service/calls/live_calls.h"
#include "service/calls/live_streams.h"
#include "service/calls/records/call_observers.h"
#include "service/calls/service_context.h"
#include "service/connections/acceptor.h"
#include "service/identity/identity.h"
#include "service/limits/tenant_ledger.h"
#include "service/limits/tenant_limits.h"
#include "service/log/log.h"
#include "service/options/server_options.h"
#include "service/process/memory_pressure.h"
#include "service/profiles/profile_cache.h"
#include "service/telemetry/server_state.h"

namespace eta {

// What a server stands on; must outlive it.
struct ServerContext {
  Engine& engine;
  ProfileStore* profiles = nullptr;           // null: none, and what needs one says so
  Calibrator calibrate;                       // set where there is a store
  TelemetrySource telemetry;                  // null: nothing is counted
  std::vector<CallObserver*> call_observers;  // hear of the end of every call
  Log* log = nullptr;                         // null: nothing is said
  const TenantLimits* limits = nullptr;       // null: tenants have none of their own
  KvEventFeed* kv_events = nullptr;           // of the engine's prefix cache; null: none is kept
};

// Must outlive every call; its members are destroyed in an order in which none uses what has gone.
struct CallResources {
  // All must outlive it.
  CallResources(const ServerOptions& options, const ServerContext& server, const Acceptor& acceptor,
                const Identity& identity);
  CallResources(const CallResources&) = delete;
  CallResources& operator=(const CallResources&) = delete;

  CallObservers observers;
  ServerStateFlags state;
  LiveCalls live_calls;
  const TenantLimits no_limits;
  const TenantLimits& limits;
  TenantLedger ledger;
  std::atomic<int64_t> answers_cut_off = 0;
  LiveStreams streams;
  MemoryPressure memory;
  TaskThread writer{"writer"};
  std::unique_ptr<ProfileCache> profiles;  // null without a store
  WorkerPool store_calls;
  WorkerPool tokenizer_calls;
  WorkerPool format_calls;  // behind it, where calls go on
  Calibrations calibrations;
  WorkerPool calibration_threads;
  const ServiceContext context;  // all of it, as calls see it
};

}  // namespace eta
