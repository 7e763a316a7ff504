// Whether the step loop is alive: steps must end while requests run. Not thread-safe.
#pragma once

#include <chrono>

#include "engine/engine.h"

namespace eta {

class Heartbeat {
 public:
  Heartbeat(std::chrono::milliseconds stall_timeout, Clock::time_point now)
      : stall_timeout_(stall_timeout), progress_(now) {}

  // False once requests run and no step has ended for stall_timeout; true again with the next step.
  bool Alive(const EngineSnapshot& snapshot, Clock::time_point now) {
    if (snapshot.running == 0 || snapshot.steps != steps_) {
      steps_ = snapshot.steps;
      progress_ = now;
    }
    return now - progress_ < stall_timeout_;
  }

 private:
  const std::chrono::milliseconds stall_timeout_;
  int64_t steps_ = 0;
  Clock::time_point progress_;  // when steps_ changed, or nothing ran
};

}  // namespace eta
