// The messages of proto/eta/v1/stats.proto from what the server knows of itself.
#pragma once

#include <chrono>

#include "absl/status/statusor.h"
#include "eta/v1/stats.pb.h"
#include "service/stats/server_status.h"

namespace eta {

inline constexpr int kMaxStatsProfiles = 1000;
inline constexpr int kMaxStatsUses = 1000;
// Of all layers of all series: what keeps a message well below the 4 MiB that clients take.
inline constexpr int64_t kMaxStatsLayerNumbers = 131'072;

v1::Stats ToMessage(const ServerStatus& status);

// Default 1 s. INVALID_ARGUMENT for what is not 100 ms to 60 s.
absl::StatusOr<std::chrono::nanoseconds> ToInterval(const v1::WatchStatsRequest& request);

}  // namespace eta
