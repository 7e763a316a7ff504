// What screening hands to compaction, whichever kernel screened.
//
// Screening visits every full block of every decode row that is not admit_all and writes, at
// selection.heads[row, kv_head, block], the mask of the heads whose bound reaches their threshold;
// nothing is pinned or rescued yet. It also raises best[row, query head] to the largest BoundKey
// among the row's first rescue_chunk blocks. Compaction (screen_pack.cuh) then pins, rescues, packs
// the masks into lists in place, counts, and clears `best` for the next layer.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

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

// Steps 1 and 2 of the selection, in float32: q_mu = <q, mu>, variance = sum q_i^2 sigma_i^2.
__device__ __forceinline__ float UpperBound(float q_mu, float variance, float z, float q_norm,
                                            float max_norm, float scale) {
  return scale * fminf(q_mu + z * sqrtf(variance), q_norm * max_norm);
}

// The row whose piece of screening work `unit` is: the last one with begin[row] <= unit. All lanes
// of the warp call it with the same arguments; 32 probes at a time, since each costs a trip to L2.
__device__ __forceinline__ int32_t RowOfUnit(const int32_t* begin, int32_t num_rows, int32_t unit) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  int32_t low = 0;
  int32_t count = num_rows;
  while (count > 1) {
    const int32_t step = (count + 31) / 32;
    const bool reached = lane * step < count && begin[low + lane * step] <= unit;
    const int32_t last = 31 - __clz(static_cast<int32_t>(__ballot_sync(0xffffffffu, reached)));
    low += last * step;
    count = min(step, count - last * step);
  }
  return low;
}

}  // namespace eta::cuda
