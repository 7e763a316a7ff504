// PrefillAttention at d = 256: eight warps of 16 queries each. wide_products.cuh has the products.
//
// Registers bind: a warp's sums alone take 128 of a lane's. So the queries wait in shared memory,
// and only one tile of values has room beside two of keys. Values arrive while scores are computed,
// and the next keys while values are.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/prefill/gated_softmax.cuh"
#include "kernels/cuda/prefill/prefill_operands.cuh"
#include "kernels/cuda/prefill/prefill_tile.cuh"
#include "kernels/cuda/prefill/wide_products.cuh"

namespace eta::cuda {

// All threads copy K of 64 keys, or V. Keys out of the tile's sight become zeros.
template <typename Products>
__device__ __forceinline__ void CopyWideTile(const PrefillParams& params, const PrefillTile& tile,
                                             int32_t kv_head, int32_t key_tile, bool values,
                                             uint32_t shared) {
  constexpr int kRowChunks = kWideHeadDim / 8;
  const KvTile layout(params.geometry);
  const int32_t* table = params.tables + tile.table_begin;
  const int32_t block_size = params.geometry.block_size;
  const int32_t block_shift = __ffs(block_size) - 1;
  const size_t offset = values ? layout.tile_bytes() : 0;
#pragma unroll
  for (int32_t i = threadIdx.x; i < kTileKeys * kRowChunks; i += kMmaThreads) {
    const int32_t token = i / kRowChunks;
    const int32_t chunk = i % kRowChunks;
    const int32_t key = key_tile * kTileKeys + token;
    const bool seen = key >= tile.first_key && key < tile.keys;
    const std::byte* from = params.tiles;
    if (seen) {
      from += layout.K(table[key >> block_shift], kv_head) + offset +
              ((key & (block_size - 1)) * kRowChunks + chunk) * 16;
    }
    CopyOrZero(shared + Products::Place(token, chunk), from, seen ? 16 : 0);
  }
}

// Waits until at most kLeft groups of copies are on their way, and for all threads.
template <typename Products, int kLeft>
__device__ __forceinline__ void AwaitWide() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
  Products::Publish();
  __syncthreads();
}

// kPieces: of the key tiles of sparse prefill; 0 for full prefill; or kWindowPieces. The gate is
// exact to float32.
template <typename Products, int kPieces>
__device__ __forceinline__ void AttendWide(const PrefillParams& params) {
  using Shape = WideShape;
  using Element = typename Products::Element;
  constexpr bool kSparse = kPieces > 0;
  extern __shared__ std::byte unaligned[];
  std::byte* stages = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  WaitForPrevious();
  const PrefillWork work = WorkOfBlock(params);
  const PrefillTile tile = FindTile(params, work.tile, work.kv_head);
  if (tile.row_begin < 0 || work.part >= tile.parts) return;
  const int32_t begin = PartBegin(tile, work.part);
  const int32_t end = PartBegin(tile, work.part + 1);
  const int32_t warp = __shfl_sync(~0u, static_cast<int32_t>(threadIdx.x / 32), 0);
  const int32_t first_query = warp * 16 + threadIdx.x % 32 / 4;
  const uint32_t shared = SharedAddress(stages);
  const uint32_t values = shared + 2 * Shape::kTileBytes;
  const KeyPlaces<kPieces> places(params, work);
  const auto copy = [&](int32_t place, bool of_values, uint32_t to) {
    if (place < end) {
      CopyWideTile<Products>(params, tile, work.kv_head, places.KeyTile(place), of_values, to);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  copy(begin, false, shared);
  Products products(stages);
  products.ShareQueries(params, tile, work.kv_head, first_query);
  QueryPair queries;
  queries.Load(params, tile, work.kv_head, first_query);
  if constexpr (kSparse) queries.LoadFloor(params, tile, work.kv_head, first_query);
  float sums[kWideHeadDim / 8][4] = {};

  for (int32_t place = begin; place < end; ++place) {
    const auto side = static_cast<uint32_t>(place - begin) % 2;
    copy(place, true, values);
    copy(place + 1, false, shared + (side ^ 1) * Shape::kTileBytes);
    AwaitWide<Products, 2>();
    const int32_t key_tile = places.KeyTile(place);
    const int32_t first_key = key_tile * kTileKeys;
    const auto attended = places.Attended(place, first_query, queries, first_key);
    // Whole warpgroups multiply, or leave a tile out.
    bool attends = true;
    if constexpr (kSparse) attends = AttendsAny<kPieces>(places.Entry(place), warp / 4);
    uint32_t weights[4][4];
    [[maybe_unused]] uint32_t remainders[4][4];
    if (attends) {
      float scores[8][4];
      products.MultiplyKeys(shared + side * Shape::kTileBytes, scores);
      Temper(scores, queries, first_key, TemperedKeysOf(params, tile.tempered, key_tile));
      Rescale rescale;
      const Weighing weighing =
          BoundMaximum</*kPrecise=*/true>(scores, queries, rescale, params, attended, first_key,
                                          HidesKeys<kPieces>(params, tile, first_key));
      Weigh(scores, queries, weighing, params, attended);
      Apply(rescale, sums);
      PackWeights<Element>(scores, weights);
      if constexpr (std::is_same_v<Element, BFloat16>) {
        PackRemainders<Element>(scores, weights, remainders);
      }
    }
    AwaitWide<Products, 1>();
    if (attends) {
      if constexpr (std::is_same_v<Element, BFloat16>) {
        products.MultiplyValues(values, sums, weights, remainders);
      } else {
        products.MultiplyValues(values, sums, weights);
      }
    }
    __syncthreads();  // the next copies take the place of these keys and values
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  AllowNext();
  StoreQueries<kWideHeadDim, kSparse>(params, tile, work, first_query, queries, sums);
}

template <typename Element, int kPieces>
__global__ void __launch_bounds__(kMmaThreads, 1)
    PrefillWide(const __grid_constant__ PrefillParams params) {
  AttendWide<WideMma<Element>, kPieces>(params);
}

template <typename Element, int kPieces>
__global__ void __launch_bounds__(kMmaThreads, 1)
    PrefillWideWgmma(const __grid_constant__ PrefillParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  AttendWide<WideWgmma<Element>, kPieces>(params);
#else
  __trap();
#endif
}

}  // namespace eta::cuda
