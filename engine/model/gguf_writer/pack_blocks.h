// Numbers as ggml stores them: the inverse of UnpackBlocks (kernels/weights/ggml_type.h).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/weights/ggml_type.h"

namespace eta {

// Of types F32, F16, BF16 and Q8_0. Rounded to nearest; blocks of Q8_0 as ggml's own conversion
// makes them: the scale is the greatest magnitude over 127, as float16, and each number is divided
// by that scale before the scale is rounded. OUT_OF_RANGE, naming the element, for what is not
// finite there. REQUIRES: `values` are whole blocks.
absl::StatusOr<std::vector<std::byte>> PackBlocks(const GgmlLayout& layout,
                                                  std::span<const float> values);

}  // namespace eta
