// What a request may ask for. One place, used by validation, by flags and by the documentation.
#pragma once

#include <chrono>
#include <cstdint>

namespace eta {

struct Limits {
  // Tokens of prompt + answer; past the trained length RoPE is scaled. A model's sliding window
  // bounds it: Engine::limits() has the smaller of the two.
  int32_t max_context = 32768;
  int32_t max_output_tokens = 16384;
  int64_t max_prompt_bytes = 768 * 1024;
  int32_t max_waiting_requests = 256;
  int64_t max_waiting_tokens = 512 * 1024;              // prompt tokens of requests not yet running
  std::chrono::milliseconds default_deadline{120'000};  // of a request that sets none
  std::chrono::milliseconds max_congestion{30'000};     // a reader slower than this is cut off
};

}  // namespace eta
