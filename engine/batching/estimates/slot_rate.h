// How often slots of a full batch come free: what waits for one are predicted from. Measured while
// none is free, so that a batch with room to spare says nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "engine/base/clock.h"

namespace eta {

class SlotRate {
 public:
  // For every step: how many slots were taken when it came and how many once it had given those
  // that it could, and whether all that is left would not slot another one.
  void Measure(int32_t before, int32_t after, bool full, Clock::time_point at);

  // Between two that come free, averaged over the recent ones. Zero while one is free, and before
  // the first came free; what was measured counts no more once none was wanted for a while.
  std::chrono::duration<double> interval() const;

  // How long the next request waits for its slot with so many before it, when `taken` are taken.
  // The slot that is due next has been coming since the last one came. Zero where interval() is.
  std::chrono::milliseconds Predict(int64_t ahead, int32_t taken, Clock::time_point now) const;

 private:
  int32_t taken_ = 0;                            // by the last step
  std::optional<Clock::time_point> full_since_;  // or since the last slot came free; unset: one is
  Clock::time_point full_until_{};
  // Sums over the recent slots that came free, the newest of which weigh most.
  std::chrono::duration<double> time_{0.0};
  double slots_ = 0.0;
};

}  // namespace eta
