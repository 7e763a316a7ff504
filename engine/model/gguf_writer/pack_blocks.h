// Numbers as ggml stores them: the inverse of UnpackBlocks (kernels/weights/ggml_type.h).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/weights/ggml_type.h"

namespace eta {

// Of types F32, F16, BF16, rounded to nearest, and Q8_0 (kernels/weights/pack_groups.h).
// OUT_OF_RANGE, naming the element, for what is not finite there. REQUIRES: `values` are whole
// blocks.
absl::StatusOr<std::vector<std::byte>> PackBlocks(const GgmlLayout& layout,
                                                  std::span<const float> values);

}  // namespace eta
