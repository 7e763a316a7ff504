// What both screening kernels and compaction share: the form in which the best bound is kept
// (BoundKey, BlockOfKey), where a row's z stands (HeadZ), and how an 8-bit record's deviations
// widen (WidenE4M3).
//
// Screening visits every full block of every decode row that is not admit_all and writes, at
// selection.heads[row, kv_head, block], the mask of the heads whose bound reaches their threshold;
// nothing is pinned or rescued yet. It also raises best[row, query head] to the largest BoundKey
// among the row's first rescue_chunk blocks. Compaction (screen_pack.cuh) then pins, rescues, packs
// the masks into lists in place, counts, and clears `best` for the next layer.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/host/step_view.h"

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

// z of the heads that share a KV head, from its first head on, where the row has one for each;
// else null, and StepRow::z is for all.
__device__ __forceinline__ const float* HeadZ(const StepView& step, const StepRow& row,
                                              int32_t num_query_heads, int64_t first_head) {
  if (row.head_z < 0) return nullptr;
  return step.head_z + int64_t{row.head_z} * num_query_heads + first_head;
}

// Four e4m3 without sign, each divided by 256, as two pairs of float16, exactly: float16 has one
// more bit of exponent and seven of mantissa, and a bias that is 8 larger.
__device__ __forceinline__ uint2 WidenE4M3(uint32_t bytes) {
  return {__byte_perm(bytes, 0, 0x1404) >> 1, __byte_perm(bytes, 0, 0x3424) >> 1};
}

}  // namespace eta::cuda
