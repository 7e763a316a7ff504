// How a server stands at one moment: read once (status_reader.h), rendered as the Prometheus page
// (page/metrics_page.h) and as the message Stats (convert_stats.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "calibration/profiles/profile_store.h"
#include "engine/base/tenant.h"
#include "engine/base/threads/watched_files.h"
#include "engine/batching/fairness/tenant_queue.h"
#include "engine/front/engine.h"
#include "service/calibrate/calibrations.h"
#include "service/connections/connection_usage.h"
#include "service/limits/tenant_ledger.h"
#include "service/process/pressure_level.h"
#include "service/process/process_usage.h"
#include "service/profiles/profile_cache.h"
#include "service/telemetry/server_state.h"
#include "service/telemetry/telemetry_snapshot.h"
#include "service/tracing/span_counts.h"

namespace eta {

// What a tenant may use and uses now.
struct TenantStatus {
  TenantUse use;
  bool named = false;                // by the operator, in the file of limits
  TenantQueue queue;                 // its requests in the engine
  int32_t calibrations = 0;          // that run
  std::optional<ProfileUse> stored;  // absent: not known
};

struct MemoryStatus {
  Pressure pressure = Pressure::kNone;
  double used = 0.0;          // of the limit; 0 without one
  int64_t streams_ended = 0;  // for want of memory
};

// Of a server with a profile store.
struct StoreStatus {
  bool up = false;
  ProfileCacheStatus cache;
};

// A file that is read again when it changes.
struct FileStatus {
  std::string file;  // "tls", "identity", "tenants"
  ReloadStatus reloads;
};

// Calls that wait for one thing, and as many as may.
struct QueueStatus {
  int64_t waiting = 0;
  int64_t max_waiting = 0;
};

struct ServerStatus {
  std::chrono::system_clock::time_point time;
  Clock::time_point now;
  std::string version;
  std::optional<Tenant> tenant;  // whose this is alone; absent: everybody's
  TelemetrySnapshot telemetry;
  ProcessUsage process;

  // Absent: the model is still being loaded, and nothing below is known.
  std::optional<ServerState> state;
  EngineInfo info{};
  EngineSnapshot engine;
  std::vector<EngineSnapshot> devices;
  std::vector<TenantStatus> tenants;  // by name
  std::vector<RunningCalibration> calibrations;
  std::vector<LoadedProfile> profiles;  // in memory, by tenant, name and version
  std::optional<StoreStatus> store;
  std::optional<int64_t> default_profile_tenants;  // whose default profile is in memory
  QueueStatus store_calls;                         // for a thread of the store
  QueueStatus tokenizer_calls;                     // for a thread that makes tokens of a text
  QueueStatus format_calls;                        // for a thread that waits for a compiler
  QueueStatus profile_lookups;                     // of Generate
  ConnectionUsage connections;
  MemoryStatus memory;
  int64_t answers_cut_off = 0;  // of unary calls, that were not read in time
  std::vector<FileStatus> files;
  std::optional<SpanCounts> spans;  // absent: none are sent
  int64_t watchers = 0;             // calls of WatchStats
  int64_t max_watchers = 0;
};

}  // namespace eta
