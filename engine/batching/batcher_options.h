// How a batcher fills its steps.
#pragma once

#include <chrono>
#include <cstdint>

namespace eta {

struct BatcherOptions {
  int32_t max_running = 64;                          // slots: sequences that run and are not paused
  int32_t max_step_tokens = 256;                     // rows of one step
  bool prefix_cache = true;                          // share full prompt blocks between requests
  std::chrono::milliseconds max_congestion{30'000};  // a reader behind for longer is cut off
};

}  // namespace eta
