// A warp's products of a chunk of packed weights with rows of x, for one matrix and for experts.
#pragma once

#include <cstdint>

#include "kernels/cuda/packed/packed_chunk.cuh"

namespace eta::cuda::packed {

// Adds a chunk's products: of each group the sum, scaled, less the minimum times the sum of x.
// `load_x(column, group)`: the lane's numbers of x. `sums_of_x(column, group, x)`: SumsOfX of them.
// Products depend on each other within a group alone, so several columns or groups go together.
template <typename T, int kColumns, typename Loaded, typename LoadX, typename SumX>
__device__ __forceinline__ void MultiplyChunk(const Loaded& chunk, const LoadX& load_x,
                                              const SumX& sums_of_x, float (&sums)[kColumns][4]) {
  constexpr int kColumnsTogether = kColumns < 4 ? kColumns : 4;
  constexpr int kGroupsTogether = kColumns <= 2 ? kChunkGroups : 1;
  constexpr int kTogether = kGroupsTogether * kColumnsTogether;
#pragma unroll
  for (int first_group = 0; first_group < kChunkGroups; first_group += kGroupsTogether) {
    uint4 low[kGroupsTogether];
    uint4 high[kGroupsTogether];
#pragma unroll
    for (int group = 0; group < kGroupsTogether; ++group) {
      low[group] = chunk.template Widen<T>(first_group + group, 0);
      high[group] = chunk.template Widen<T>(first_group + group, 1);
    }
#pragma unroll
    for (int first_column = 0; first_column < kColumns; first_column += kColumnsTogether) {
      uint4 x[kTogether];
      float parts[kTogether][4] = {};
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        x[i] = load_x(first_column + i % kColumnsTogether, first_group + i / kColumnsTogether);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const uint4& l = low[i / kColumnsTogether];
        const uint4& h = high[i / kColumnsTogether];
        const uint32_t first[4] = {l.x, h.x, l.y, h.y};
        Mma<T>(parts[i], first, x[i].x, x[i].y);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const uint4& l = low[i / kColumnsTogether];
        const uint4& h = high[i / kColumnsTogether];
        const uint32_t second[4] = {l.z, h.z, l.w, h.w};
        Mma<T>(parts[i], second, x[i].z, x[i].w);
      }
      float2 of_x[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if constexpr (Loaded::kHasLow) {
          of_x[i] = sums_of_x(first_column + i % kColumnsTogether,
                              first_group + i / kColumnsTogether, x[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const GroupScales scales = chunk.Scales(first_group + i / kColumnsTogether);
        float(&to)[4] = sums[first_column + i % kColumnsTogether];
#pragma unroll
        for (int j = 0; j < 4; ++j) to[j] = fmaf(scales.scale[j / 2], parts[i][j], to[j]);
        if constexpr (Loaded::kHasLow) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            to[j] = fmaf(-scales.low[j / 2], j % 2 == 0 ? of_x[i].x : of_x[i].y, to[j]);
          }
        }
      }
    }
  }
}

}  // namespace eta::cuda::packed
