// The scales in ggml's blocks and, where a type has them, minima: float16, of MXFP4 e8m0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/weights/ggml_type.h"

namespace eta {

// Index of the first block with a scale or a minimum that is NaN or infinite; nullopt if there is
// none. Numbers that are unpacked from all other blocks are finite, and in such a block none is.
// Types that are not quantised have no scales.
// REQUIRES: `blocks` is a whole number of blocks.
std::optional<int64_t> FirstNonFiniteBlock(const GgmlLayout& layout,
                                           std::span<const std::byte> blocks);

}  // namespace eta
