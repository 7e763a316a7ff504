// What the Prometheus page shows beside what Telemetry counts: how things stand when it is written.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "service/server_state.h"

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

struct ServerFigures {
  ServerState state = ServerState::kServing;
  EngineSnapshot engine;
  int32_t num_devices = 0;
  int32_t lost_devices = 0;
  EngineInfo info;
  int32_t calibrations = 0;  // that run
  bool memory_pressure = false;
  double memory_used = 0.0;  // of the limit; 0 without one
  std::optional<StoreFigures> store;
};

}  // namespace eta
