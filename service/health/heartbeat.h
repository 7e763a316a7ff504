// Tells whether the step loop is alive: steps must end while there is work. Not thread-safe.
#pragma once

#include <chrono>

#include "engine/front/engine.h"

namespace eta {

class Heartbeat {
 public:
  Heartbeat(std::chrono::milliseconds stall_timeout, Clock::time_point now)
      : stall_timeout_(stall_timeout), progress_(now) {}

  // False once there is work and no step has ended for stall_timeout; true again with the next
  // step. How much work there is does not matter.
  bool Alive(const EngineSnapshot& snapshot, Clock::time_point now) {
    const bool idle = snapshot.running == 0 && snapshot.waiting == 0 &&
                      snapshot.passes_running == 0 && snapshot.passes_waiting == 0;
    if (idle || snapshot.steps != steps_) {
      steps_ = snapshot.steps;
      progress_ = now;
    }
    return now - progress_ < stall_timeout_;
  }

 private:
  const std::chrono::milliseconds stall_timeout_;
  int64_t steps_ = 0;
  Clock::time_point progress_;  // when steps_ changed, or there was nothing to do
};

}  // namespace eta
