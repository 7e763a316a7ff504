// The largest of what a figure was lately: at least the last kSteps / 2 steps, at most the last
// kSteps, and nothing that is older than kTime. It is that of two windows, the one that runs and
// the one before it, so that it comes down to what the later of them saw. Not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "engine/base/clock.h"

namespace eta {

class RecentPeak {
 public:
  static constexpr int64_t kSteps = 512;
  static constexpr std::chrono::seconds kTime{10};

  // What it is now. Neither time nor steps go back.
  void Take(int64_t value, Clock::time_point now, int64_t step) {
    const auto time = now - begin_time_;
    const int64_t steps = step - begin_step_;
    if (2 * time >= kTime || 2 * steps >= kSteps) {
      before_ = time >= kTime || steps >= kSteps ? 0 : current_;
      current_ = 0;
      begin_time_ = now;
      begin_step_ = step;
    }
    current_ = std::max(current_, value);
  }
  int64_t value() const { return std::max(before_, current_); }

 private:
  int64_t before_ = 0;
  int64_t current_ = 0;
  Clock::time_point begin_time_;
  int64_t begin_step_ = 0;
};

}  // namespace eta
