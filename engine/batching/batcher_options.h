// How a batcher fills its steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>

#include "engine/request/shadow/live_mass.h"

namespace eta {

struct BatcherOptions {
  int32_t max_running = 64;       // slots: sequences that run and are not paused
  int32_t max_step_tokens = 256;  // rows of one step
  // Of these, rows of answers; at least max_running, at most Model::max_decode_rows.
  int32_t max_decode_rows = std::numeric_limits<int32_t>::max();
  bool prefix_cache = true;    // share full prompt blocks between requests
  double shadow_rate = 0.001;  // of decode row-layers, measured against full attention; 0: none
  std::shared_ptr<LiveMass> live_mass;               // is told of what was measured; may be null
  std::chrono::milliseconds max_congestion{30'000};  // a reader behind for longer is cut off
};

}  // namespace eta
