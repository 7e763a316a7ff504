// What the Prometheus page shows beside what Telemetry counts: how things stand when it is written.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "calibration/profiles/profile_store.h"
#include "engine/base/threads/watched_files.h"
#include "engine/engine.h"
#include "service/connections/connection_figures.h"
#include "service/process/pressure_level.h"
#include "service/telemetry/server_state.h"

namespace eta {

struct ProfileFigures {
  std::string tenant;
  std::string name;
  int64_t version = 0;
  std::string digest;
  std::optional<double> head_density;  // verified; absent: not measured
  std::optional<double> union_density;
};

// Of a server with a profile store.
struct StoreFigures {
  bool up = false;
  std::vector<ProfileFigures> profiles;  // in memory
  int64_t cache_bytes = 0;
  int64_t reloads_succeeded = 0;
  int64_t reloads_failed = 0;
  std::optional<std::chrono::nanoseconds> last_reload_age;  // of the newest that succeeded
  std::chrono::nanoseconds staleness{0};                    // of what was confirmed longest ago
};

// What a tenant may use and uses. A bound that is 0 is none.
struct TenantFigures {
  std::string tenant;
  bool named = false;  // by the operator, in the file of limits
  int64_t max_calls = 0;
  int64_t calls = 0;
  int64_t burst_tokens = 0;
  std::optional<int64_t> tokens_left;  // of its budget; absent without one
  int64_t max_kv_tokens = 0;
  int64_t kv_tokens = 0;  // reserved by what runs
  int64_t running = 0;    // requests, in the engine
  int64_t waiting = 0;
  int64_t paused = 0;  // of those that run
  double tokens_per_second = 0.0;
  double weight = 0.0;
  int64_t max_calibrations = 0;
  int64_t calibrations = 0;
  int64_t max_profile_versions = 0;
  int64_t max_profile_bytes = 0;
  int64_t max_profile_versions_ever = 0;
  std::optional<ProfileUse> stored;  // absent: not known
};

struct PressureFigures {
  Pressure level = Pressure::kNone;
  double memory_used = 0.0;     // of the limit; 0 without one
  int64_t streams_ended = 0;    // for want of memory
  int64_t answers_cut_off = 0;  // that were not read in time
};

// Of files that are read again when they change.
struct FileFigures {
  std::string file;  // "tls", "identity", "tenants"
  ReloadFigures reloads;
};

struct ServerFigures {
  ServerState state = ServerState::kServing;
  EngineSnapshot engine;
  std::vector<EngineSnapshot> devices;
  EngineInfo info;
  int32_t calibrations = 0;  // that run
  PressureFigures pressure;
  std::vector<TenantFigures> tenants;
  ConnectionFigures connections;
  std::vector<FileFigures> files;
  std::optional<StoreFigures> store;
  int64_t store_calls_waiting = 0;  // for a thread
  int64_t max_store_calls_waiting = 0;
  int64_t profile_lookups_waiting = 0;  // of Generate
  int64_t max_profile_lookups_waiting = 0;
  int64_t watchers = 0;  // calls of WatchStats
  int64_t max_watchers = 0;
};

}  // namespace eta
