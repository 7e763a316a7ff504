// PrefillAttention with mma.sync, sm_80 upward: eight warps of 16 queries each. Tiles of 64 keys
// and values arrive by cp.async, kMmaStages ahead.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/prefill/gated_softmax.cuh"
#include "kernels/cuda/prefill/prefill_operands.cuh"
#include "kernels/cuda/prefill/prefill_tile.cuh"

namespace eta::cuda {

inline constexpr int kMmaStages = 3;

inline constexpr int kMmaThreads = 2 * kTileQueries;

template <int kHeadDim>
struct MmaShape {
  static constexpr int kTileBytes = kTileKeys * kHeadDim * 2;  // of K, and of V
  static constexpr int kSharedBytes = kMmaStages * 2 * kTileBytes;
};

// Byte offset of the 16-byte chunk `chunk` of token `token` in a tile; KvTile::Chunk for constants.
template <int kHeadDim>
__device__ __forceinline__ uint32_t ChunkOffset(int32_t token, int32_t chunk) {
  const int32_t swizzle = kHeadDim == 96 ? (token >> 1) & 3 : token & 7;
  return token * (kHeadDim * 2) + ((chunk ^ swizzle) * 16);
}

// Copies 16 bytes, or writes zeros if `bytes` is 0.
__device__ __forceinline__ void CopyOrZero(uint32_t shared, const std::byte* global,
                                           uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}

// All threads copy K and V of 64 keys, or K alone. Keys after the sequence's end become zeros, and
// those before the tile's first key.
template <int kHeadDim, bool kValues = true>
__device__ __forceinline__ void CopyKeyTile(const PrefillParams& params, const PrefillTile& tile,
                                            int32_t kv_head, int32_t key_tile, uint32_t shared) {
  constexpr int kRowChunks = kHeadDim / 8;
  const KvTile layout(params.geometry);
  const int32_t* table = params.tables + tile.table_begin;
  for (int32_t i = threadIdx.x; i < kTileKeys * kRowChunks; i += kMmaThreads) {
    const int32_t key = key_tile * kTileKeys + i / kRowChunks;
    const uint32_t bytes = key >= tile.first_key && key < tile.keys ? 16 : 0;
    const int32_t within = key % params.geometry.block_size;
    const std::byte* from = params.tiles;
    if (bytes != 0) {
      from += layout.K(table[key / params.geometry.block_size], kv_head) +
              (within * kRowChunks + i % kRowChunks) * 16;
    }
    CopyOrZero(shared + i * 16, from, bytes);
    if constexpr (kValues) {
      const std::byte* values = bytes != 0 ? from + layout.tile_bytes() : from;
      CopyOrZero(shared + kTileKeys * kHeadDim * 2 + i * 16, values, bytes);
    }
  }
}

// scores += products of 16 queries with 8 * kTiles keys in shared memory, the first of them a
// multiple of 8, by the 16 coordinates of step `k`. Several operands are the parts of a sum that
// make one query.
template <typename Element, int kHeadDim, int kTiles, typename... Operands>
__device__ __forceinline__ void MultiplyKeyStep(float (&scores)[kTiles][4], uint32_t keys, int k,
                                                const Operands&... queries) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
    uint32_t b[4];
    LoadMatrices(
        b, keys + ChunkOffset<kHeadDim>(n * 8 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
    const auto multiply = [&](const uint32_t(&query)[4]) {
      Mma<Element>(scores[n], query, b[0], b[1]);
      Mma<Element>(scores[n + 1], query, b[2], b[3]);
    };
    (multiply(queries), ...);
  }
}

// The same by all steps, one operand's after the other.
template <typename Element, int kHeadDim, int kTiles, typename... Operands>
__device__ __forceinline__ void MultiplyKeys(float (&scores)[kTiles][4], uint32_t keys,
                                             const Operands&... queries) {
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    MultiplyKeyStep<Element, kHeadDim>(scores, keys, k, queries[k]...);
  }
}

// sums += weights [16][64] by the values of a tile. Several operands are the parts of a sum that
// make one weight.
template <typename Element, int kHeadDim, typename... Operands>
__device__ __forceinline__ void MultiplyValues(float (&sums)[kHeadDim / 8][4], uint32_t values,
                                               const Operands&... weights) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n += 2) {
      uint32_t b[4];
      LoadMatricesTransposed(
          b, values + ChunkOffset<kHeadDim>(16 * k + lane / 8 % 2 * 8 + lane % 8, n + lane / 16));
      const auto multiply = [&](const uint32_t(&weight)[4]) {
        Mma<Element>(sums[n], weight, b[0], b[1]);
        Mma<Element>(sums[n + 1], weight, b[2], b[3]);
      };
      (multiply(weights[k]), ...);
    }
  }
}

// kPrecise: the gate is exact to float32, instead of tanh's approximation. kPieces: of the key
// tiles of sparse prefill; 0 for full prefill; or kWindowPieces.
template <typename Element, int kHeadDim, bool kPrecise, int kPieces>
__global__ void __launch_bounds__(kMmaThreads,
                                  kHeadDim == 64 && std::is_same_v<Element, Half> ? 2 : 1)
    PrefillMma(const __grid_constant__ PrefillParams params) {
  using Shape = MmaShape<kHeadDim>;
  constexpr bool kSparse = kPieces > 0;
  constexpr bool kSplitWeight = std::is_same_v<Element, BFloat16>;
  extern __shared__ __align__(128) std::byte stages[];
  WaitForPrevious();
  const PrefillWork work = WorkOfBlock(params);
  const PrefillTile tile = FindTile(params, work.tile, work.kv_head);
  if (tile.row_begin < 0 || work.part >= tile.parts) return;
  const int32_t begin = PartBegin(tile, work.part);
  const int32_t end = PartBegin(tile, work.part + 1);
  const int32_t lane = threadIdx.x % 32;
  const int32_t first_query = threadIdx.x / 32 * 16 + lane / 4;
  const uint32_t shared = SharedAddress(stages);
  const KeyPlaces<kPieces> places(params, work);

  const auto copy = [&](int32_t place) {
    if (place < end) {
      CopyKeyTile<kHeadDim>(params, tile, work.kv_head, places.KeyTile(place),
                            shared + (place - begin) % kMmaStages * 2 * Shape::kTileBytes);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  for (int32_t i = 0; i < kMmaStages - 1; ++i) copy(begin + i);

  uint32_t query_high[kHeadDim / 16][4];
  uint32_t query_low[kHeadDim / 16][4];
  LoadQueries<Element, kHeadDim>(params, tile, work.kv_head, first_query, query_high, query_low);
  QueryPair queries;
  queries.Load(params, tile, work.kv_head, first_query);
  if constexpr (kSparse) queries.LoadFloor(params, tile, work.kv_head, first_query);
  float sums[kHeadDim / 8][4] = {};

  for (int32_t place = begin; place < end; ++place) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kMmaStages - 2) : "memory");
    __syncthreads();
    copy(place + kMmaStages - 1);
    const uint32_t keys = shared + (place - begin) % kMmaStages * 2 * Shape::kTileBytes;
    const uint32_t values = keys + Shape::kTileBytes;
    const int32_t key_tile = places.KeyTile(place);

    const int32_t first_key = key_tile * kTileKeys;
    const auto attended = places.Attended(place, first_query, queries, first_key);
    if constexpr (kSparse) {
      if (!attended.of_warp) continue;
    }

    float scores[8][4] = {};
    MultiplyKeys<Element, kHeadDim>(scores, keys, query_high, query_low);
    Temper(scores, queries, first_key, TemperedKeysOf(params, tile.tempered, key_tile));
    Rescale rescale;
    const Weighing weighing =
        BoundMaximum<kPrecise>(scores, queries, rescale, params, attended, first_key,
                               HidesKeys<kPieces>(params, tile, first_key));
    Weigh(scores, queries, weighing, params, attended);
    Apply(rescale, sums);
    uint32_t weights[4][4];
    [[maybe_unused]] uint32_t weights_low[4][4];
    PackWeights<Element>(scores, weights);
    if constexpr (kSplitWeight) {
      PackRemainders<Element>(scores, weights, weights_low);
      MultiplyValues<Element, kHeadDim>(sums, values, weights, weights_low);
    } else {
      MultiplyValues<Element, kHeadDim>(sums, values, weights);
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  AllowNext();
  StoreQueries<kHeadDim, kSparse>(params, tile, work, first_query, queries, sums);
}

}  // namespace eta::cuda
