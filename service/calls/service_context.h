// What the calls of a server use; outlives all of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <stop_token>

#include "absl/status/statusor.h"
#include "calibration/calibrate/calibrator.h"
#include "calibration/profiles/profile_store.h"
#include "engine/base/threads/task_thread.h"
#include "engine/base/threads/worker_pool.h"
#include "engine/batching/kv_events/kv_event_feed.h"
#include "engine/front/engine.h"
#include "service/calls/live_calls.h"
#include "service/calls/live_streams.h"
#include "service/limits/tenant_ledger.h"
#include "service/limits/tenant_limits.h"
#include "service/options/server_options.h"
#include "service/process/memory_pressure.h"
#include "service/telemetry/call_record.h"
#include "service/telemetry/server_state.h"
#include "service/telemetry/telemetry_snapshot.h"

namespace eta {

// eta::Calibrate, or what stands in for it in a test.
using Calibrator = std::function<absl::StatusOr<CalibrationResult>(
    Engine&, const CalibrationJob&, const CalibrationObserver&, std::stop_token)>;

// Telemetry::Snapshot, or what stands in for it in a test.
using TelemetrySource = std::function<TelemetrySnapshot(const SnapshotQuery&)>;

class Acceptor;
class Calibrations;
class Identity;
struct Caller;
class ProfileCache;

struct ServiceContext {
  const ServerOptions& options;
  Engine& engine;
  ProfileStore* store;  // null: the server has none
  Calibrator calibrate;
  TelemetrySource telemetry;  // null: nothing is counted

  CallObserver& calls;  // hears of every call's end
  const ServerStateFlags& state;
  LiveCalls& live_calls;
  MemoryPressure& memory;
  TaskThread& writer;
  ProfileCache* profiles;  // of the store; null without one
  WorkerPool& store_calls;
  WorkerPool& tokenizer_calls;  // of texts and chats: gRPC's threads must stay free
  WorkerPool& format_calls;     // that wait for the format of their answer to be compiled
  Calibrations& calibrations;
  WorkerPool& calibration_threads;  // room for all that `calibrations` lets in, and a few that end
  const Acceptor& acceptor;
  const Identity& identity;
  const Caller* unnamed =
      nullptr;  // whose a call is that shows nothing; null: as the identity says
  const TenantLimits& limits;
  TenantLedger& ledger;
  std::atomic<int64_t>& answers_cut_off;  // of unary calls, that were not read in time
  LiveStreams& streams;
  KvEventFeed* kv_events = nullptr;  // null: nobody can read what the prefix cache holds
};

}  // namespace eta
