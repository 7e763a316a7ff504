// How fast prompts are prefilled, in tokens per second, measured on the steps that mostly prefill.
// Waits are predicted from it. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

#include "engine/base/clock.h"

namespace eta {

// How long `tokens` of prompts take at `rate` tokens per second; zero if that is 0: not known yet.
std::chrono::milliseconds PrefillTime(int64_t tokens, double rate);

class PrefillThroughput {
 public:
  // Rows per second, averaged over the recent steps; 0 before the first.
  double value() const { return rate_; }

  void Measure(int32_t rows, std::chrono::nanoseconds duration, Clock::time_point at);

  // How long `tokens` take. Zero without a recent measurement: an old one may be far off, and only
  // work corrects it.
  std::chrono::milliseconds Predict(int64_t tokens, Clock::time_point now) const;

 private:
  double rate_ = 0.0;
  Clock::time_point measured_at_{};
};

}  // namespace eta
