// Shared by both screening kernels and compaction: the form of the best bound (BoundKey,
// BlockOfKey), where a row's z is (HeadZ), and how an 8-bit record's deviations widen (WidenE4M3).
//
// Screening visits every full block of every decode row that is not admit_all. It writes the mask
// of the heads whose bound reaches their threshold at selection.heads[row, kv_head, block]; nothing
// is pinned or rescued yet. It also raises best[row, query head] to the largest BoundKey among the
// row's first rescue_chunk blocks. Compaction (screen_pack.cuh) then pins, rescues, packs the masks
// into lists in place, counts, and clears `best` for the next layer.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/host/step_view.h"

namespace eta::cuda {

// A key whose order is that of the bounds; of equal bounds the lower block has the larger key. It
// is never 0, which is the cleared state.
__device__ __forceinline__ uint64_t BoundKey(float bound, int32_t block) {
  const uint32_t bits = __float_as_uint(bound);
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return (static_cast<uint64_t>(ordered) << 32) | (0xffffffffu - static_cast<uint32_t>(block));
}
__device__ __forceinline__ int32_t BlockOfKey(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

// The z of the heads that share a KV head, from its first head on, if the row has one z per head.
// Else null, and StepRow::z holds for all heads.
__device__ __forceinline__ const float* HeadZ(const StepView& step, const StepRow& row,
                                              int32_t num_query_heads, int64_t first_head) {
  if (row.head_z < 0) return nullptr;
  return step.head_z + int64_t{row.head_z} * num_query_heads + first_head;
}

// Divides four e4m3 without sign by 256 and widens them to two pairs of float16. This is exact:
// float16 has one more bit of exponent, seven more of mantissa, and a bias that is 8 larger.
__device__ __forceinline__ uint2 WidenE4M3(uint32_t bytes) {
  return {__byte_perm(bytes, 0, 0x1404) >> 1, __byte_perm(bytes, 0, 0x3424) >> 1};
}

}  // namespace eta::cuda
