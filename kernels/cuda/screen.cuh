// What both screening kernels have in common: a block's bound, and what they hand to compaction.
//
// Screening visits every full block of every decode row that is not admit_all and writes, at
// selection.heads[row, kv_head, block], the mask of the heads whose bound reaches their threshold;
// nothing is pinned or rescued yet. It also raises best[row, query head] to the largest BoundKey
// among the row's first rescue_chunk blocks. Compaction (screen_pack.cuh) then pins, rescues, packs
// the masks into lists in place, counts, and clears `best` for the next layer.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/step_view.h"

namespace eta::cuda {

// Order-preserving: larger bound first, among equals the lower block. Never 0, the cleared state.
__device__ __forceinline__ uint64_t BoundKey(float bound, int32_t block) {
  const uint32_t bits = __float_as_uint(bound);
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return (static_cast<uint64_t>(ordered) << 32) | (0xffffffffu - static_cast<uint32_t>(block));
}
__device__ __forceinline__ int32_t BlockOfKey(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

// Steps 1 and 2 of the selection, in float32, from <q, mu> and sum q_i^2 sigma_i^2 as the record
// has mu and sigma; of one with a float16 index, only M of `record` is its own (Float16Trailer).
__device__ __forceinline__ float UpperBound(float q_mu, float variance, float z, float q_norm,
                                            const RecordTrailer& record, float scale) {
  const float deviation = record.sigma_scale * sqrtf(variance);
  const float estimate = record.mu_scale * q_mu + q_norm * record.mu_error + z * deviation;
  return scale * fminf(estimate, q_norm * record.max_norm);
}
__device__ __forceinline__ RecordTrailer Float16Trailer(float max_norm) {
  return {.max_norm = max_norm, .mu_scale = 1.0f, .mu_error = 0.0f, .sigma_scale = 1.0f};
}

// Four e4m3 without sign, each divided by 256, as two pairs of float16, exactly: float16 has one
// more bit of exponent and seven of mantissa, and a bias that is 8 larger.
__device__ __forceinline__ uint2 WidenE4M3(uint32_t bytes) {
  return {__byte_perm(bytes, 0, 0x1404) >> 1, __byte_perm(bytes, 0, 0x3424) >> 1};
}

}  // namespace eta::cuda
