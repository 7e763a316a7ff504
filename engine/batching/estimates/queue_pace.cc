#include "engine/batching/estimates/queue_pace.h"

#include <algorithm>

#include "engine/batching/estimates/prefill_rate.h"

namespace eta {

using std::chrono::milliseconds;

milliseconds QueuePace::RetryAfter(int64_t tokens, int64_t requests) const {
  const auto seats =
      std::chrono::duration_cast<milliseconds>(static_cast<double>(requests) * seat_interval);
  return RetryHint(std::max(PrefillTime(tokens, prefill_rate), seats));
}

milliseconds RetryHint(milliseconds wait) {
  return std::clamp(wait, milliseconds(100), milliseconds(30'000));
}

}  // namespace eta
