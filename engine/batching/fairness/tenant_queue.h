// What one tenant has in the engine now: its part of the queue and of the batch.
#pragma once

#include <cstdint>
#include <string>

namespace eta {

struct TenantQueue {
  std::string tenant;
  double weight = 1.0;
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t waiting_tokens = 0;  // of prompts that have not run yet
  int64_t kv_tokens = 0;       // of what runs: prompts and the longest answers
  int64_t paused = 0;          // of what runs: no slot, their readers are or were behind
};

}  // namespace eta
