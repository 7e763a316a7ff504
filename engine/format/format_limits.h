// What a format of an answer may be, so that compiling it costs what it may.
#pragma once

#include <cstddef>

namespace eta {

inline constexpr size_t kMaxFormatBytes = 64 << 10;  // source, or all choices together
inline constexpr size_t kMaxChoices = 1024;
inline constexpr size_t kMaxTagDepth = 64;        // of the JSON of a structural tag
inline constexpr size_t kMaxReasoningBytes = 64;  // each of the two markers
// Blanks between the parts of a JSON value: models that are free to write more do, until
// max_tokens.
inline constexpr int kMaxWhiteSpace = 2;

}  // namespace eta
