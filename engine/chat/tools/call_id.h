// Names of the calls in an answer.
#pragma once

#include <cstdint>
#include <string>

namespace eta {

// The same for the same values, and another one for another prompt of a conversation, which is
// longer each time. "call_" and 24 letters and digits; `is_short`: 9 of them.
std::string CallId(uint64_t seed, int32_t prompt_tokens, int32_t index, bool is_short);

}  // namespace eta
