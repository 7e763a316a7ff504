// The steps of prefill attention with wgmma (sm_90a) at d = 64: a part of a tile's keys comes
// through a ring of stages in shared memory, is multiplied and weighed. prefill_wgmma.cuh puts the
// steps together.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/prefill/gated_softmax.cuh"
#include "kernels/cuda/prefill/prefill_copy.cuh"
#include "kernels/cuda/prefill/prefill_operands.cuh"
#include "kernels/cuda/prefill/prefill_tile.cuh"

namespace eta::cuda {

inline constexpr int kWgmmaThreads = 256;
inline constexpr int kWgmmaWarps = kWgmmaThreads / 32;
inline constexpr int kWgmmaTileBytes = kTileKeys * 64 * 2;
inline constexpr int kWgmmaQueryBytes = kTileQueries * 64 * 2;

template <typename Element>
struct WgmmaShape {
  // bfloat16 loses too much of the weights, so the product is also taken with their rounding
  // errors. Registers for these are gained by reading the queries from shared memory.
  static constexpr bool kSplitWeight = std::is_same_v<Element, BFloat16>;
  static constexpr int kStages = kSplitWeight ? 4 : 5;
  static constexpr int kLow = kStages * 2 * kWgmmaTileBytes;
  static constexpr int kHigh = kLow + kWgmmaQueryBytes;
  static constexpr int kBarriers = kHigh + (kSplitWeight ? kWgmmaQueryBytes : 0);
  static constexpr int kEntries = kBarriers + kStages * 2 * 8;  // of sparse prefill, one a stage
  // Includes room to align the stages to the period of the swizzle.
  static constexpr int kSharedBytes = kEntries + kStages * AdmittedTileBytes(4) + 1024;
};

// A barrier of all threads, apart from __syncthreads().
__device__ __forceinline__ void SyncThreads() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWgmmaThreads) : "memory");
}

// One lane of the warp arrives at the barrier.
__device__ __forceinline__ void ArriveOnce(Barrier* barrier) {
  asm volatile(
      "{ .reg .pred elected; .reg .b64 state;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "@elected mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(SharedAddress(barrier))
      : "memory");
}

// The ring of stages in shared memory, as a thread sees it.
template <typename Element>
struct WgmmaRing {
  using Shape = WgmmaShape<Element>;
  std::byte* stages;  // aligned to the period of the swizzle
  uint32_t shared;    // its address
  Barrier* full;      // of each stage
  Barrier* empty;     // of each stage
  int32_t warp;

  // All threads, before anything else; __syncthreads() must follow.
  __device__ __forceinline__ WgmmaRing() {
    extern __shared__ std::byte unaligned[];
    stages = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
    full = reinterpret_cast<Barrier*>(stages + Shape::kBarriers);
    empty = full + Shape::kStages;
    shared = SharedAddress(stages);
    // The shuffle makes the warp's number uniform for the compiler as well.
    warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
      for (int i = 0; i < Shape::kStages; ++i) {
        InitBarrier(full + i, 1);
        InitBarrier(empty + i, kWgmmaWarps);
      }
      PublishBarriers();
    }
  }
};

// The queries of a warp against one part of its tile's keys. The two kernels are made of these
// steps; all warps of a warpgroup take them together. kPieces: of the key tiles of sparse prefill;
// 0 for full prefill; or kWindowPieces. Tiles go by their number in the part.
template <typename Element, int kPieces>
struct WgmmaPart {
  using Shape = WgmmaShape<Element>;
  using Keys = typename KeysOf<kPieces>::Type;
  using Place = RingPlace<Shape::kStages>;
  static constexpr bool kSparse = kPieces > 0;
  static constexpr int kEntryBytes = kSparse ? AdmittedTileBytes(kPieces) : 0;
  static constexpr int kStages = Shape::kStages;

  const PrefillParams& params;
  const WgmmaRing<Element>& ring;
  const PrefillWork& work;
  const PrefillTile& tile;
  int32_t begin;
  int32_t count;               // of tiles
  volatile int32_t* tempered;  // TemperedKeys; there are no registers for it
  KeyTileCopier<kEntryBytes> copier;
  int32_t first_query;
  uint32_t query_high[4][4];
  uint32_t query_low[4][4];
  uint32_t low_rows;  // addresses of the warpgroup's 64 queries
  uint32_t high_rows;
  QueryPair queries;
  int32_t block_shift;
  Rescale rescale;
  float sums[8][4] = {};
  float scores[8][4];
  uint32_t weights[4][4];
  uint32_t weights_low[4][4];

  // Starts the first copies, and loads the queries.
  __device__ __forceinline__ WgmmaPart(const PrefillParams& with, const WgmmaRing<Element>& in,
                                       const PrefillWork& on, const PrefillTile& of)
      : params(with),
        ring(in),
        work(on),
        tile(of),
        begin(PartBegin(of, on.part)),
        count(PartBegin(of, on.part + 1) - begin),
        tempered(ShareTempered(of)),
        copier(with, of, on.kv_head, with.admitted.List(on.tile, on.kv_head)) {
    // Warp i % 8 copies tile i. It looks the tile's block up after it has copied tile i - 8.
    if (ring.warp < count) {
      copier.LookUp(begin + ring.warp);
      if (ring.warp < kStages - 1) {
        Copy(ring.warp, ring.warp);
        if (ring.warp + kWgmmaWarps < count) copier.LookUp(begin + ring.warp + kWgmmaWarps);
      }
    }

    first_query = ring.warp * 16 + threadIdx.x % 32 / 4;
    LoadQueries<Element, 64>(params, tile, work.kv_head, first_query, query_high, query_low);
    wgmma::WriteRows(ring.stages + Shape::kLow, ring.warp * 16, query_low);
    if constexpr (Shape::kSplitWeight) {
      wgmma::WriteRows(ring.stages + Shape::kHigh, ring.warp * 16, query_high);
    }
    wgmma::PublishWrites();
    SyncThreads();
    low_rows = ring.shared + Shape::kLow + ring.warp / 4 * (64 * 128);
    high_rows = ring.shared + Shape::kHigh + ring.warp / 4 * (64 * 128);
    queries.Load(params, tile, work.kv_head, first_query);
    if constexpr (kSparse) queries.LoadFloor(params, tile, work.kv_head, first_query);
    block_shift = __ffs(params.geometry.block_size) - 1;
  }

  __device__ __forceinline__ static volatile int32_t* ShareTempered(const PrefillTile& tile) {
    __shared__ volatile int32_t tempered[2];
    if (threadIdx.x == 0) {
      tempered[0] = tile.tempered.begin;
      tempered[1] = tile.tempered.words;
    }
    __syncthreads();
    return tempered;
  }

  __device__ __forceinline__ uint32_t KeysAt(int32_t stage) const {
    return ring.shared + stage * (2 * kWgmmaTileBytes);
  }
  __device__ __forceinline__ static int32_t EntryAt(int32_t stage) {
    return Shape::kEntries + stage * kEntryBytes;
  }
  // The place of tile i among the sequence's key tiles.
  __device__ __forceinline__ int32_t KeyTileOf(int32_t i, int32_t stage) const {
    if constexpr (!kSparse) return begin + i;
    return reinterpret_cast<const AdmittedTile*>(ring.stages + EntryAt(stage))->key_tile;
  }

  __device__ __forceinline__ void Copy(int32_t i, int32_t stage) const {
    copier.Copy(begin + i, KeysAt(stage), ring.shared + EntryAt(stage), ring.full + stage);
  }
  // Copies the tile two stages ahead of the last one that was copied. A stage is filled again two
  // tiles after its use, so that the copy does not wait for its last reader. `at`: of tile i.
  __device__ __forceinline__ void CopyNext(int32_t i, const Place& at) {
    const int32_t next = i + kStages - 2;
    if (next % kWgmmaWarps != ring.warp || next >= count) return;
    const bool wrapped = at.stage >= 2;
    const int32_t to = wrapped ? at.stage - 2 : at.stage + kStages - 2;
    Wait(ring.empty + to, at.phase ^ (wrapped ? 0 : 1));
    Copy(next, to);
    if (next + kWgmmaWarps < count) copier.LookUp(begin + next + kWgmmaWarps);
  }
  __device__ __forceinline__ void Receive(int32_t i, const Place& at) const {
    __syncwarp();
    Wait(ring.full + at.stage, at.phase);
    const int32_t used = tile.keys - KeyTileOf(i, at.stage) * kTileKeys;
    int32_t missing = 0;  // keys before the window, whose blocks may be gone
    if constexpr (kPieces == kWindowPieces) {
      missing = tile.first_key - KeyTileOf(i, at.stage) * kTileKeys;
    }
    if (used >= kTileKeys && missing <= 0) return;
    // This is the sequence's last tile and the CTA's last one, or the window's first. The memory
    // after its keys, or before them, holds no data, and a weight of 0 must not meet a NaN there.
    auto* values =
        reinterpret_cast<uint4*>(ring.stages + (KeysAt(at.stage) - ring.shared) + kWgmmaTileBytes);
#pragma unroll 1
    for (int32_t to = max(used, 0) * 8 + threadIdx.x; to < kTileKeys * 8; to += kWgmmaThreads) {
      values[to] = make_uint4(0, 0, 0, 0);
    }
#pragma unroll 1
    for (int32_t to = threadIdx.x; to < missing * 8; to += kWgmmaThreads) {
      values[to] = make_uint4(0, 0, 0, 0);
    }
    wgmma::PublishWrites();
    SyncThreads();
  }
  __device__ __forceinline__ void Release(int32_t stage) const {
    ArriveOnce(ring.empty + stage);
  }

  // Starts queries by keys.
  __device__ __forceinline__ void MultiplyKeys(int32_t stage) {
    const uint64_t keys = wgmma::Describe(KeysAt(stage));
    if constexpr (Shape::kSplitWeight) {
      const uint64_t high = wgmma::Describe(high_rows);
      wgmma::MultiplyShared<Element, false>(scores, high, keys);
#pragma unroll
      for (int k = 1; k < 4; ++k) {
        wgmma::MultiplyShared<Element, true>(scores, high + k * wgmma::kInnerStep,
                                             keys + k * wgmma::kInnerStep);
      }
    } else {
      wgmma::Multiply<Element, false, false>(scores, query_high[0], keys);
#pragma unroll
      for (int k = 1; k < 4; ++k) {
        wgmma::Multiply<Element, false, true>(scores, query_high[k], keys + k * wgmma::kInnerStep);
      }
    }
    const uint64_t low = wgmma::Describe(low_rows);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma::MultiplyShared<Element, true>(scores, low + k * wgmma::kInnerStep,
                                           keys + k * wgmma::kInnerStep);
    }
    wgmma::Commit();
  }
  // Starts weights by values.
  __device__ __forceinline__ void MultiplyValues(int32_t stage) {
    const uint64_t values = wgmma::Describe(KeysAt(stage) + kWgmmaTileBytes);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma::Multiply<Element, true, true>(sums, weights[k],
                                           values + k * wgmma::kInnerStepTransposed);
    }
    if constexpr (Shape::kSplitWeight) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        wgmma::Multiply<Element, true, true>(sums, weights_low[k],
                                             values + k * wgmma::kInnerStepTransposed);
      }
    }
    wgmma::Commit();
  }
  // Waits for weights by values.
  __device__ __forceinline__ void FinishValues() {
    wgmma::Wait<0>();
    wgmma::Pin(sums);
  }

  __device__ __forceinline__ Keys KeysOfTile(int32_t i, int32_t stage) const {
    if constexpr (kSparse) {
      return Keys(ring.stages + EntryAt(stage), first_query, queries.floored, queries.position,
                  KeyTileOf(i, stage) * kTileKeys, block_shift);
    } else {
      return AllKeys<kPieces>(params.window);
    }
  }
  __device__ __forceinline__ Weighing Bound(int32_t i, int32_t stage, const Keys& keys) {
    const int32_t key_tile = KeyTileOf(i, stage);
    const int32_t first_key = key_tile * kTileKeys;
    Temper(scores, queries, first_key,
           TemperedKeysOf(params, {tempered[0], tempered[1]}, key_tile));
    return BoundMaximum</*kPrecise=*/false>(scores, queries, rescale, params, keys, first_key,
                                            HidesKeys<kPieces>(params, tile, first_key));
  }
  // Turns the scores into packed weights.
  __device__ __forceinline__ void WeighTile(const Weighing& weighing, const Keys& keys) {
    Weigh(scores, queries, weighing, params, keys);
    PackWeights<Element>(scores, weights);
    if constexpr (Shape::kSplitWeight) PackRemainders<Element>(scores, weights, weights_low);
  }

  // The last tile's values, which are in `stage`, and the result. -1: they are multiplied already.
  __device__ __forceinline__ void Finish(int32_t stage) {
    if (!kSparse || stage >= 0) {
      wgmma::Fence();
      MultiplyValues(stage);
      FinishValues();
    }
    AllowNext();
    StoreQueries<64, kSparse>(params, tile, work, first_query, queries, sums);
  }
};

}  // namespace eta::cuda
