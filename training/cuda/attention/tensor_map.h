// Tensor maps (CUtensorMap) of q, k, v and gradients [B, T, H, d] in bfloat16. With one the copy
// engine reads tiles of 64 tokens of one head, 64 elements wide, into shared memory. Tokens after
// the sequence's end arrive as zeros.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "training/tensor.h"

namespace eta::training::cuda {

// `tensor` [B T, H d] is 16-byte aligned, `head_dim` a multiple of 64. An error says what is wrong
// with it or with the driver.
absl::StatusOr<CUtensorMap> MapHeads(const Tensor& tensor, int32_t sequences, int32_t tokens,
                                     int32_t head_dim);

}  // namespace eta::training::cuda
