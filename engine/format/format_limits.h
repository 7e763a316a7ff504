// What a format of an answer may be, beside what every request is held to
// (request/answers/format_validation.h), so that compiling it costs what it may.
#pragma once

#include <cstddef>

namespace eta {

inline constexpr size_t kMaxTagDepth = 64;        // of the JSON of a structural tag
inline constexpr size_t kMaxReasoningBytes = 64;  // each of the two markers
// Blanks between the parts of a JSON value: models that are free to write more do, until
// max_tokens.
inline constexpr int kMaxWhiteSpace = 2;

}  // namespace eta
