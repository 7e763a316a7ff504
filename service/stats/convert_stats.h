// The messages of proto/eta/v1/stats.proto from what the server knows of itself.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "eta/v1/stats.pb.h"
#include "service/calibrate/calibrations.h"
#include "service/connections/connection_figures.h"
#include "service/profiles/profile_cache.h"
#include "service/stats/take_tenants.h"
#include "service/telemetry/server_figures.h"
#include "service/telemetry/server_state.h"
#include "service/telemetry/telemetry_snapshot.h"

namespace eta {

inline constexpr int kMaxStatsProfiles = 1000;
inline constexpr int kMaxStatsUses = 1000;
// Of all layers of all series: what keeps a message well below the 4 MiB that clients take.
inline constexpr int64_t kMaxStatsLayerNumbers = 131'072;

// Everything that one snapshot is made of.
struct StatsFacts {
  std::chrono::system_clock::time_point time;
  Clock::time_point now;
  std::optional<Tenant> tenant;  // whose figures these are; absent: everybody's
  ServerState state = ServerState::kServing;
  std::string version;  // of the server
  EngineSnapshot engine;
  std::vector<EngineSnapshot> devices;
  TelemetrySnapshot telemetry;
  std::vector<LoadedProfile> profiles;  // by tenant, name and version
  std::vector<RunningCalibration> calibrations;
  ConnectionFigures connections;
  std::vector<TenantHolding> holdings;  // by tenant
  PressureFigures pressure;
  int32_t store_calls_waiting = 0;
  int32_t max_store_calls_waiting = 0;
  int32_t profile_lookups_waiting = 0;
  int32_t max_profile_lookups_waiting = 0;
};

v1::Stats ToMessage(const StatsFacts& facts, const EngineInfo& info);

// Default 1 s. INVALID_ARGUMENT for what is not 100 ms to 60 s.
absl::StatusOr<std::chrono::nanoseconds> ToInterval(const v1::WatchStatsRequest& request);

}  // namespace eta
