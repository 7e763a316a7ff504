// PrefillAttention with mma.sync at d = 256: eight warps of 16 queries each, as in prefill_mma.cuh.
//
// Registers bind: a warp's sums alone take 128 of a lane's. So the queries wait in shared memory,
// as the operands that each lane needs, and only one tile of values has room beside two of keys.
// Values arrive while scores are computed, and the next keys while values are.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/prefill/gated_softmax.cuh"
#include "kernels/cuda/prefill/prefill_mma.cuh"
#include "kernels/cuda/prefill/prefill_operands.cuh"
#include "kernels/cuda/prefill/prefill_tile.cuh"

namespace eta::cuda {

struct WideShape {
  static constexpr int kSteps = kWideHeadDim / 16;
  static constexpr int kTileBytes = kTileKeys * kWideHeadDim * 2;  // of K, and of V
  // Keys twice, then values, then high and low operands [kSteps][threads] of 16 bytes each.
  static constexpr int kQueryBytes = kSteps * kMmaThreads * 16;
  static constexpr int kSharedBytes = 3 * kTileBytes + 2 * kQueryBytes;
  static_assert(kSharedBytes <= kWideHeadMemory);
};

// All threads copy K of 64 keys, or V. Keys out of the tile's sight become zeros.
__device__ __forceinline__ void CopyWideTile(const PrefillParams& params, const PrefillTile& tile,
                                             int32_t kv_head, int32_t key_tile, bool values,
                                             uint32_t shared) {
  constexpr int kRowChunks = kWideHeadDim / 8;
  const KvTile layout(params.geometry);
  const int32_t* table = params.tables + tile.table_begin;
  const size_t offset = values ? layout.tile_bytes() : 0;
  for (int32_t i = threadIdx.x; i < kTileKeys * kRowChunks; i += kMmaThreads) {
    const int32_t key = key_tile * kTileKeys + i / kRowChunks;
    const bool seen = key >= tile.first_key && key < tile.keys;
    const std::byte* from = params.tiles;
    if (seen) {
      const int32_t within = key % params.geometry.block_size;
      from += layout.K(table[key / params.geometry.block_size], kv_head) + offset +
              (within * kRowChunks + i % kRowChunks) * 16;
    }
    CopyOrZero(shared + i * 16, from, seen ? 16 : 0);
  }
}

__device__ __forceinline__ void CommitWide() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kLeft groups of copies are on their way, and for all threads.
template <int kLeft>
__device__ __forceinline__ void AwaitWide() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
  __syncthreads();
}

// Puts the calling lane's operands where it finds them again: [step][thread].
template <typename Element>
__device__ __forceinline__ void ShareQueries(const PrefillParams& params, const PrefillTile& tile,
                                             int32_t kv_head, int32_t query, uint4* high,
                                             uint4* low) {
  uint32_t of_high[WideShape::kSteps][4];
  uint32_t of_low[WideShape::kSteps][4];
  LoadQueries<Element, kWideHeadDim>(params, tile, kv_head, query, of_high, of_low);
#pragma unroll
  for (int k = 0; k < WideShape::kSteps; ++k) {
    high[k * kMmaThreads] = make_uint4(of_high[k][0], of_high[k][1], of_high[k][2], of_high[k][3]);
    low[k * kMmaThreads] = make_uint4(of_low[k][0], of_low[k][1], of_low[k][2], of_low[k][3]);
  }
}

// scores = products of the lane's queries with the 64 keys of a tile.
template <typename Element>
__device__ __forceinline__ void MultiplyWideKeys(const uint4* high, const uint4* low, uint32_t keys,
                                                 float (&scores)[8][4]) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[n][e] = 0.0f;
  }
#pragma unroll 2
  for (int k = 0; k < WideShape::kSteps; ++k) {
    const uint4 first = high[k * kMmaThreads];
    const uint4 second = low[k * kMmaThreads];
    const uint32_t a[4] = {first.x, first.y, first.z, first.w};
    const uint32_t rest[4] = {second.x, second.y, second.z, second.w};
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      uint32_t b[4];
      LoadMatrices(b, keys + ChunkOffset<kWideHeadDim>(n * 8 + lane / 16 * 8 + lane % 8,
                                                       2 * k + lane / 8 % 2));
      Mma<Element>(scores[n], a, b[0], b[1]);
      Mma<Element>(scores[n + 1], a, b[2], b[3]);
      Mma<Element>(scores[n], rest, b[0], b[1]);
      Mma<Element>(scores[n + 1], rest, b[2], b[3]);
    }
  }
}

// sums += weights [16][64] by the values of a tile. Several operands are the parts of a sum that
// make one weight.
template <typename Element, typename... Operands>
__device__ __forceinline__ void MultiplyWideValues(uint32_t values,
                                                   float (&sums)[kWideHeadDim / 8][4],
                                                   const Operands&... weights) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int n = 0; n < kWideHeadDim / 8; n += 2) {
      uint32_t b[4];
      LoadMatricesTransposed(b, values + ChunkOffset<kWideHeadDim>(
                                             16 * k + lane / 8 % 2 * 8 + lane % 8, n + lane / 16));
      const auto multiply = [&](const uint32_t(&weight)[4]) {
        Mma<Element>(sums[n], weight, b[0], b[1]);
        Mma<Element>(sums[n + 1], weight, b[2], b[3]);
      };
      (multiply(weights[k]), ...);
    }
  }
}

// kPieces: 0 for full prefill, or kWindowPieces. The gate is exact to float32.
template <typename Element, int kPieces>
__global__ void __launch_bounds__(kMmaThreads, 1)
    PrefillWide(const __grid_constant__ PrefillParams params) {
  using Shape = WideShape;
  using Keys = typename KeysOf<kPieces>::Type;
  static_assert(kPieces <= 0);
  extern __shared__ __align__(128) std::byte stages[];
  WaitForPrevious();
  const PrefillWork work = WorkOfBlock(params);
  const PrefillTile tile = FindTile(params, work.tile, work.kv_head);
  if (tile.row_begin < 0 || work.part >= tile.parts) return;
  const int32_t begin = PartBegin(tile, work.part);
  const int32_t end = PartBegin(tile, work.part + 1);
  const int32_t first_query = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  const uint32_t shared = SharedAddress(stages);
  const uint32_t values = shared + 2 * Shape::kTileBytes;
  auto* high = reinterpret_cast<uint4*>(stages + 3 * Shape::kTileBytes) + threadIdx.x;
  auto* low = high + Shape::kSteps * kMmaThreads;
  const auto copy = [&](int32_t place, bool of_values, uint32_t to) {
    if (place < end) CopyWideTile(params, tile, work.kv_head, place, of_values, to);
    CommitWide();
  };
  copy(begin, false, shared);
  ShareQueries<Element>(params, tile, work.kv_head, first_query, high, low);
  QueryPair queries;
  queries.Load(params, tile, work.kv_head, first_query);
  float sums[kWideHeadDim / 8][4] = {};
  const Keys attended = AllKeys<kPieces>(params.window);

  for (int32_t place = begin; place < end; ++place) {
    const auto side = static_cast<uint32_t>(place - begin) % 2;
    copy(place, true, values);
    copy(place + 1, false, shared + (side ^ 1) * Shape::kTileBytes);
    AwaitWide<2>();
    const int32_t first_key = place * kTileKeys;
    float scores[8][4];
    MultiplyWideKeys<Element>(high, low, shared + side * Shape::kTileBytes, scores);
    Temper(scores, queries, first_key, TemperedKeysOf(params, tile.tempered, place));
    Rescale rescale;
    const Weighing weighing =
        BoundMaximum</*kPrecise=*/true>(scores, queries, rescale, params, attended, first_key,
                                        HidesKeys<kPieces>(params, tile, first_key));
    Weigh(scores, queries, weighing, params, attended);
    Apply(rescale, sums);
    uint32_t weights[4][4];
    PackWeights<Element>(scores, weights);
    if constexpr (std::is_same_v<Element, BFloat16>) {
      uint32_t remainders[4][4];
      PackRemainders<Element>(scores, weights, remainders);
      AwaitWide<1>();
      MultiplyWideValues<Element>(values, sums, weights, remainders);
    } else {
      AwaitWide<1>();
      MultiplyWideValues<Element>(values, sums, weights);
    }
    __syncthreads();  // the next copies take the place of these keys and values
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  AllowNext();
  StoreQueries<kWideHeadDim, false>(params, tile, work, first_query, queries, sums);
}

}  // namespace eta::cuda
