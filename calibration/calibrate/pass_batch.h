// Any number of passes of one engine, run beside each other; their outcomes are collected in order,
// so that sums over them do not depend on which ended first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stop_token>

#include "absl/status/status.h"
#include "engine/front/engine.h"

namespace eta {

struct PassBatch {
  size_t count = 0;
  // Passes that have been submitted and not collected, at most: bounds the memory of their
  // outcomes.
  size_t window = 64;
  std::function<Pass(size_t index)> make;
  // In the order of the indices. An error ends the pass and is returned.
  std::function<absl::Status(size_t index, PassOutcome outcome)> collect;
  // A few times a second: rows of all passes, and how many have been collected. May be empty.
  std::function<void(int64_t rows_done, size_t collected)> progress;
};

// Runs all passes. Every function above is called on the calling thread. No pass is left when this
// returns. CANCELLED once `stop` is requested; otherwise the first error of a pass. If the engine's
// queue is full of others' passes, this waits until one of its own makes room.
absl::Status RunPasses(Engine& engine, const PassBatch& pass, const std::stop_token& stop);

}  // namespace eta
