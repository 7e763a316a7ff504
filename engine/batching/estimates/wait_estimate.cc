#include "engine/batching/estimates/wait_estimate.h"

#include <algorithm>

#include "engine/batching/estimates/prefill_throughput.h"

namespace eta {

using std::chrono::milliseconds;

milliseconds WaitEstimate::RetryAfter(int64_t tokens, int64_t requests) const {
  const auto slots =
      std::chrono::duration_cast<milliseconds>(static_cast<double>(requests) * slot_interval);
  return RetryHint(std::max(PrefillTime(tokens, prefill_throughput), slots));
}

milliseconds RetryHint(milliseconds wait) {
  return std::clamp(wait, milliseconds(100), milliseconds(30'000));
}

}  // namespace eta
