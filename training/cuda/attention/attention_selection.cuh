// Which keys the rows of a tile attend to (KeySelection), in kernels without a gate. A warpgroup
// multiplies only those tiles in which one of its rows has a key.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "training/cuda/attention/kernel_params.h"

namespace eta::training::cuda {

// The first tile of keys that queries from `first_query` on attend to.
template <bool kSelected>
__device__ __forceinline__ int32_t FirstTile(const SelectedKeys& keys, int32_t first_query) {
  if constexpr (kSelected) {
    return max(0, first_query - keys.window + 1) / 64;
  } else {
    return 0;
  }
}

// The tile after the last of the queries that attend to keys before `end_key`.
template <bool kSelected>
__device__ __forceinline__ int32_t EndTile(const SelectedKeys& keys, int32_t end_key,
                                           int32_t tiles) {
  if constexpr (kSelected) {
    return min(tiles, (end_key + keys.window - 2) / 64 + 1);
  } else {
    return tiles;
  }
}

// The words of KeySelection::blocks for the tiles that a warpgroup comes to. Each is read a tile
// ahead, since it comes from memory. Without a list all bits are set.
class TileWords {
 public:
  // `first`: the place of the first word in the list. Words are `step` apart.
  __device__ __forceinline__ TileWords(const SelectedKeys& keys, int64_t first, int32_t step,
                                       int32_t words)
      : next_(keys.blocks + first), step_(step), left_(keys.blocks == nullptr ? 0 : words) {
    Read();
  }
  __device__ __forceinline__ uint64_t Take() {
    const uint64_t word = ahead_;
    Read();
    return word;
  }

 private:
  __device__ __forceinline__ void Read() {
    if (left_ <= 0) return;
    ahead_ = __ldg(next_);
    next_ += step_;
    --left_;
  }

  const uint64_t* next_;
  int32_t step_;
  int32_t left_;
  uint64_t ahead_ = ~uint64_t{0};
};

// Takes keys that lie before a query's window from a tile of scores. `edge` is the distance from
// the tile's keys to its queries, less the window: nothing is taken if it is below -63. Transposed,
// the rows are keys.
template <bool kTransposed>
__device__ __forceinline__ void MaskWindow(float (&scores)[8][4], int32_t edge) {
  if (edge < -63) return;
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int32_t row = threadIdx.x % 128 / 32 * 16 + lane / 4 + e / 2 * 8;
      const int32_t column = 8 * n + lane % 4 * 2 + e % 2;
      const bool before = kTransposed ? row <= column + edge : column <= row + edge;
      if (before) scores[n][e] = -INFINITY;
    }
  }
}

}  // namespace eta::training::cuda
