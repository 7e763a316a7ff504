// How fast a queue is served, as of the last step. Refusals tell from it when to come again.
#pragma once

#include <chrono>
#include <cstdint>

namespace eta {

struct WaitEstimate {
  double prefill_throughput = 0.0;                   // prompt tokens per second; 0: not known yet
  std::chrono::duration<double> slot_interval{0.0};  // as of SlotRate

  // A hint for clients: the time in which so many prompt tokens and requests are served.
  std::chrono::milliseconds RetryAfter(int64_t tokens, int64_t requests) const;
};

// A predicted wait as such a hint: 0.1 s to 30 s.
std::chrono::milliseconds RetryHint(std::chrono::milliseconds wait);

}  // namespace eta
