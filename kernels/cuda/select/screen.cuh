// Shared by both screening kernels and compaction: the form of the best bound (BoundKey,
// BlockOfKey), where a row's z is (HeadZ), how an 8-bit record's deviations widen (WidenE4M3), and
// what rows with relative thresholds leave (MassScratch).
//
// Screening visits every full block of every decode row that is not admit_all. It writes the mask
// of the heads whose bound reaches their threshold at selection.heads[row, kv_head, block]; nothing
// is pinned or rescued yet. It also raises best[row, query head] to the largest BoundKey among the
// row's first rescue_chunk blocks. Compaction (screen_pack.cuh) then pins, rescues, packs the masks
// into lists in place, counts, and clears `best` for the next layer.
//
// The thresholds of rows with relative thresholds come last. So screening writes the masses of
// their blocks instead of masks, and sums of masses over every kMassBlocks blocks. Compaction adds
// up the sums, in one order, and compares.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/host/step_view.h"

namespace eta::cuda {

// A key whose order is that of the bounds; of equal bounds the lower block has the larger key. A
// bound that is not a number is the lowest. The key is never 0, which is the cleared state.
__device__ __forceinline__ uint64_t BoundKey(float bound, int32_t block) {
  const uint32_t bits = __float_as_uint(bound == bound ? bound : -INFINITY);
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return (static_cast<uint64_t>(ordered) << 32) | (0xffffffffu - static_cast<uint32_t>(block));
}
__device__ __forceinline__ int32_t BlockOfKey(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

// Blocks whose masses are added up before they are written: those of one warp's products.
inline constexpr int32_t kMassBlocks = 16;

// What screening leaves of rows with relative thresholds, as logarithms with base 2.
struct MassScratch {
  float* masses;  // [rows, HKV, capacity, stride]: l_j of the heads of a group
  float* sums;    // [rows, HQ, pieces]: log-sum-exp of the terms of Lhat over kMassBlocks blocks
  int64_t capacity;
  int32_t stride;  // the group's heads up to an even number
  int32_t pieces;

  __device__ __forceinline__ float* Masses(int64_t list) const {
    return masses + list * capacity * stride;
  }
};

// Full blocks of a row that are always read: those before `first` and those from `end` on.
struct AlwaysRead {
  int32_t first;
  int32_t end;

  __device__ __forceinline__ AlwaysRead(int32_t sink_blocks, int32_t pinned_blocks,
                                        int32_t num_full)
      : first(min(max(sink_blocks, 0), num_full)),
        end(max(num_full - min(max(pinned_blocks, 0), num_full), first)) {}
  __device__ __forceinline__ bool Has(int32_t block) const { return block < first || block >= end; }
};

// The z of the heads that share a KV head, from its first head on, if the row has one z per head.
// Else null, and AttentionOptions::z holds for all heads.
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
