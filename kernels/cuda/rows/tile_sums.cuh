// The end of a tile of channels in a product of few rows: the sum of the warps' sums, and the ops
// behind the product.
#pragma once

#include <cstdint>

#include "kernels/cuda/rows/product_tile.cuh"

namespace eta::cuda::product {

struct Sums {
  float of_warps[2][kWarps][4][32];  // of two tiles, in turns
};

// Stores the totals of a tile that one warp has, and what the ops behind make of them. `old`: what
// that warp loaded of out.
template <typename T, bool kSwiGlu>
__device__ __forceinline__ void StoreTile(const Args& args, const Tile<kSwiGlu>& tile,
                                          const float (&total)[4], const float (&old)[4]) {
  tile.ForSums(args, [&](int i, int32_t row, int32_t channel) {
    float value = total[i];
    if (args.accumulate) value += old[i];
    if (args.bias != nullptr) value += args.bias[channel];
    StoreOut<T>(args, row, channel, value);
    if constexpr (kSwiGlu) {
      if (i >= 2) return;
      StoreActivated<T>(args.activated, row * args.activated_stride + channel, args.activation,
                        value, total[i + 2]);
    }
  });
}

// Adds up the warps' sums of a tile and stores the result. The `count`-th tile is one warp's work;
// meanwhile the others go on. `old`: what that warp loaded of out.
template <typename T, bool kSwiGlu>
__device__ __forceinline__ void Finish(const Args& args, const Tile<kSwiGlu>& tile, int32_t count,
                                       Sums& shared, float (&sums)[4], const float (&old)[4]) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  auto& of_warps = shared.of_warps[count % 2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    of_warps[warp][i][lane] = sums[i];
    sums[i] = 0.0f;
  }
  __syncthreads();
  if (warp != count % kWarps) return;
  float total[4] = {};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
#pragma unroll
    for (int i = 0; i < 4; ++i) total[i] += of_warps[w][i][lane];
  }
  StoreTile<T>(args, tile, total, old);
}

}  // namespace eta::cuda::product
