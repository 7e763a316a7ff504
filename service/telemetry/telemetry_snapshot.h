// What the server has counted since it started, at one moment: the one source of Stats and of the
// Prometheus page, so that both say the same. Views in it stay good as long as the Telemetry that
// it came from.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/clock.h"
#include "service/telemetry/telemetry_series.h"

namespace eta {

struct LatencyQuantiles {
  int64_t count = 0;
  std::chrono::nanoseconds p50{0};
  std::chrono::nanoseconds p95{0};
  std::chrono::nanoseconds p99{0};
};

enum class Latency : uint8_t { kFirstToken, kInterToken, kQueue, kRequest };
inline constexpr int kLatencies = 4;
enum class Window : uint8_t { kOneMinute, kTenMinutes };
inline constexpr int kWindows = 2;

struct TelemetrySnapshot {
  std::string model;  // empty: it is not loaded yet
  std::chrono::nanoseconds load_duration{0};
  Clock::time_point started;
  double steps_per_second = 0.0;                                             // over the last minute
  double tokens_per_second = 0.0;                                            // drawn, likewise
  std::array<std::array<LatencyQuantiles, kWindows>, kLatencies> latencies;  // if asked for
  ServerSeries server;
  std::vector<ModeSeries> modes;
  std::vector<AccountSeries> accounts;
  std::vector<std::pair<CallSeries, int64_t>> calls;
  std::vector<std::pair<ReasonSeries, int64_t>> rejected;
  std::vector<std::pair<ReasonSeries, int64_t>> failed;
  std::vector<std::pair<TenantReason, int64_t>> reasons;
};

struct SnapshotQuery {
  bool layers = false;
  bool latencies = false;
  std::string tenant;  // its accounts, calls and reasons only; empty: everybody's
};

}  // namespace eta
