// Quantiles and rates over the last minutes. Not thread-safe; times must not go back by more than a
// slot.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "service/telemetry/telemetry_snapshot.h"

namespace eta {

// Durations of the last `slots` * `slot`, forgotten slot by slot: a figure spans between that and
// one slot less. Kept in bins whose width is 1/32 of their value, so a quantile is off by 1.6 % at
// most.
class LatencyWindow {
 public:
  LatencyWindow(std::chrono::seconds slot, int slots);

  void Observe(std::chrono::nanoseconds duration, Clock::time_point now);
  LatencyQuantiles Quantiles(Clock::time_point now) const;

 private:
  static constexpr int kSubBits = 5;
  static constexpr int kOctaves = 42 - kSubBits;  // up to 2^42 ns, more than an hour
  static constexpr int kBins = (kOctaves + 1) << kSubBits;
  struct Slot {
    int64_t number = -1;  // of slots since the clock's epoch
    std::array<uint32_t, kBins> counts{};
  };

  static int BinOf(std::chrono::nanoseconds duration);
  static std::chrono::nanoseconds MiddleOf(int bin);

  const std::chrono::nanoseconds slot_;
  std::vector<Slot> slots_;
};

// Events per second over the last minute, or since the first event if that is less.
class RateWindow {
 public:
  void Add(int64_t events, Clock::time_point now);
  double PerSecond(Clock::time_point started, Clock::time_point now) const;

 private:
  static constexpr int kSeconds = 60;
  struct Slot {
    int64_t second = -1;
    int64_t events = 0;
  };
  std::array<Slot, kSeconds> slots_;
};

}  // namespace eta
