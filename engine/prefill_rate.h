// How fast prompts go, measured on the steps that mostly prefill: what waits are predicted from.
#pragma once

#include <chrono>
#include <cstdint>

#include "engine/request.h"

namespace eta {

// When `tokens` of prompts will have been prefilled at `rate` tokens per second (0: not known yet),
// as a hint for clients: 0.1 s to 30 s.
std::chrono::milliseconds PredictRetry(int64_t tokens, double rate);

class PrefillRate {
 public:
  // Rows per second, averaged over the recent steps; 0 before the first.
  double value() const { return rate_; }

  void Measure(int32_t rows, std::chrono::nanoseconds duration, Clock::time_point at);

  // How long `tokens` take. Nothing without a recent measurement: an old one may be far off, and
  // nothing but work corrects it.
  std::chrono::milliseconds Predict(int64_t tokens, Clock::time_point now) const;

 private:
  double rate_ = 0.0;
  Clock::time_point measured_at_{};
};

}  // namespace eta
