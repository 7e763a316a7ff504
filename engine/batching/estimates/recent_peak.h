// The largest value of a count lately. That is over at least the last kSteps / 2 steps and at most
// the last kSteps, and over nothing older than kTime. Two windows hold it, the current one and the
// one before: when the older one ends, the peak comes down to what the newer one saw. Not
// thread-safe.
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

  // Its value now. Neither time nor steps go back.
  void Record(int64_t value, Clock::time_point now, int64_t step) {
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
