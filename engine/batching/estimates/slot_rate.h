// How often slots of a full batch come free. Waits for a slot are predicted from it. It is measured
// while no slot is free: a batch with room to spare says nothing. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "engine/base/clock.h"

namespace eta {

class SlotRate {
 public:
  // To be called for every step: how many slots were taken before it and after it had admitted
  // whom it could, and whether what is left does not suffice for one more.
  void Measure(int32_t before, int32_t after, bool full, Clock::time_point at);

  // The time between two slots that come free, averaged over the recent ones. Zero while a slot is
  // free, and before the first came free. Old measurements are dropped once no slot was wanted for
  // a while.
  std::chrono::duration<double> interval() const;

  // How long the next request waits for its slot with `ahead` requests before it, when `taken`
  // slots are taken. The time since the last slot came free counts for the next one. Zero where
  // interval() is zero.
  std::chrono::milliseconds Predict(int64_t ahead, int32_t taken, Clock::time_point now) const;

 private:
  int32_t taken_ = 0;  // by the last step
  // Since when no slot is free, or since the last one came free; unset: one is free.
  std::optional<Clock::time_point> full_since_;
  Clock::time_point full_until_{};
  // Sums over the recent slots that came free, the newest of which weigh most.
  std::chrono::duration<double> time_{0.0};
  double slots_ = 0.0;
};

}  // namespace eta
