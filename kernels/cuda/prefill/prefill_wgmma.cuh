// PrefillAttention with wgmma (sm_90a) at d = 64. A row of a tile is then 128 bytes, which is the
// width of the hardware's swizzle, so keys and values are multiplied where the bulk copy put them.
// Two warpgroups of 64 queries multiply and weigh, and take turns in copying. Two CTAs share a
// multiprocessor: while one warpgroup waits for its products, another is busy with gate and
// exponentials.
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

// kPieces: of the key tiles of sparse prefill; 0 for full prefill.
template <typename Element, int kPieces>
__global__ void __launch_bounds__(kWgmmaThreads, 2)
    PrefillWgmma(const __grid_constant__ PrefillParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = WgmmaShape<Element>;
  using Keys = typename KeysOf<kPieces>::Type;
  constexpr bool kSparse = kPieces > 0;
  constexpr int kEntryBytes = kSparse ? AdmittedTileBytes(kPieces) : 0;
  constexpr int kStages = Shape::kStages;
  extern __shared__ std::byte unaligned[];
  std::byte* stages = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  auto* full = reinterpret_cast<Barrier*>(stages + Shape::kBarriers);
  Barrier* empty = full + kStages;
  const uint32_t shared = SharedAddress(stages);
  const int32_t lane = threadIdx.x % 32;
  // The shuffle makes the warp's number uniform for the compiler as well.
  const int32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(full + i, 1);
      InitBarrier(empty + i, kWgmmaWarps);
    }
    PublishBarriers();
  }
  WaitForPrevious();
  const PrefillWork work = WorkOfBlock(params);
  const PrefillTile tile = FindTile(params, work.tile, work.kv_head);
  if (tile.row_begin < 0 || work.part >= tile.parts) return;
  const int32_t begin = PartBegin(tile, work.part);
  const int32_t count = PartBegin(tile, work.part + 1) - begin;
  __shared__ volatile int32_t tempered[2];  // TemperedKeys; there are no registers for it
  if (threadIdx.x == 0) {
    tempered[0] = tile.tempered.begin;
    tempered[1] = tile.tempered.words;
  }
  __syncthreads();
  // Warp i % 8 copies tile i. It looks the tile's block up after it has copied tile i - 8.
  KeyTileCopier<kEntryBytes> copier(params, tile, work.kv_head,
                                    params.admitted.List(work.tile, work.kv_head));
  const auto keys_of = [&](int32_t stage) { return shared + stage * (2 * kWgmmaTileBytes); };
  const auto entry_of = [&](int32_t stage) { return Shape::kEntries + stage * kEntryBytes; };
  if (warp < count) {
    copier.LookUp(begin + warp);
    if (warp < kStages - 1) {
      copier.Copy(begin + warp, keys_of(warp), shared + entry_of(warp), full + warp);
      if (warp + kWgmmaWarps < count) copier.LookUp(begin + warp + kWgmmaWarps);
    }
  }

  const int32_t first_query = warp * 16 + lane / 4;
  uint32_t query_high[4][4];
  uint32_t query_low[4][4];
  LoadQueries<Element, 64>(params, tile, work.kv_head, first_query, query_high, query_low);
  wgmma::WriteRows(stages + Shape::kLow, warp * 16, query_low);
  if constexpr (Shape::kSplitWeight) wgmma::WriteRows(stages + Shape::kHigh, warp * 16, query_high);
  wgmma::PublishWrites();
  SyncThreads();
  // Addresses of the warpgroup's 64 queries.
  const uint32_t low_rows = shared + Shape::kLow + warp / 4 * (64 * 128);
  const uint32_t high_rows = shared + Shape::kHigh + warp / 4 * (64 * 128);
  QueryPair queries;
  queries.Load(params, tile, work.kv_head, first_query);
  if constexpr (kSparse) queries.LoadFloor(params, tile, work.kv_head, first_query);
  const int32_t block_shift = __ffs(params.geometry.block_size) - 1;
  float sums[8][4] = {};
  float scores[8][4];
  uint32_t weights[4][4];
  uint32_t weights_low[4][4];

  const auto tile_at = [&](int32_t i, int32_t stage) {
    if constexpr (!kSparse) return begin + i;
    return reinterpret_cast<const AdmittedTile*>(stages + entry_of(stage))->key_tile;
  };
  const auto receive = [&](int32_t i, int32_t stage, uint32_t phase) {
    __syncwarp();
    Wait(full + stage, phase);
    const int32_t used = tile.keys - tile_at(i, stage) * kTileKeys;
    if (used >= kTileKeys) return;
    // This is the sequence's last tile and the CTA's last one. The memory after its keys holds no
    // data, and a weight of 0 must not meet a NaN there.
    auto* values = reinterpret_cast<uint4*>(stages + (keys_of(stage) - shared) + kWgmmaTileBytes);
#pragma unroll 1
    for (int32_t at = used * 8 + threadIdx.x; at < kTileKeys * 8; at += kWgmmaThreads) {
      values[at] = make_uint4(0, 0, 0, 0);
    }
    wgmma::PublishWrites();
    SyncThreads();
  };
  const auto multiply_keys = [&](int32_t stage) {
    const uint64_t keys = wgmma::Describe(keys_of(stage));
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
  };
  const auto multiply_values = [&](int32_t stage) {
    const uint64_t values = wgmma::Describe(keys_of(stage) + kWgmmaTileBytes);
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
  };
  Rescale rescale;
  const auto admitted = [&](int32_t i, int32_t stage) {
    if constexpr (kSparse) {
      return Keys(stages + entry_of(stage), first_query, queries.floored, queries.position,
                  tile_at(i, stage) * kTileKeys, block_shift);
    } else {
      return Keys();
    }
  };
  const auto bound = [&](int32_t i, int32_t stage, const Keys& keys) {
    const int32_t key_tile = tile_at(i, stage);
    const int32_t first_key = key_tile * kTileKeys;
    Temper(scores, queries, first_key,
           TemperedKeysOf(params, {tempered[0], tempered[1]}, key_tile));
    return BoundMaximum</*kPrecise=*/false>(scores, queries, rescale, params, keys, first_key,
                                            first_key + kTileKeys > tile.position);
  };
  const auto pack = [&] {
    PackWeights<Element>(scores, weights);
    if constexpr (Shape::kSplitWeight) PackRemainders<Element>(scores, weights, weights_low);
  };
  // Copies the tile two stages ahead of the last one that was copied. A stage is filled again two
  // tiles after its use, so that the copy does not wait for its last reader. `stage` and `phase`:
  // of tile i.
  const auto copy_next = [&](int32_t i, int32_t stage, uint32_t phase) {
    const int32_t next = i + kStages - 2;
    if (next % kWgmmaWarps != warp || next >= count) return;
    const bool wrapped = stage >= 2;
    const int32_t to = wrapped ? stage - 2 : stage + kStages - 2;
    Wait(empty + to, phase ^ (wrapped ? 0 : 1));
    copier.Copy(begin + next, keys_of(to), shared + entry_of(to), full + to);
    if (next + kWgmmaWarps < count) copier.LookUp(begin + next + kWgmmaWarps);
  };
  int32_t stage = 0;
  uint32_t phase = 0;
  if constexpr (kSparse) {
    // A warpgroup leaves out tiles to which none of its queries attends. It may not hold a stage
    // while it does: the others' copies would wait for it.
    int32_t before = -1;  // the stage whose values are still to be multiplied; -1: none
    for (int32_t i = 0; i < count; ++i) {
      if (i > 0) {
        if (++stage == kStages) {
          stage = 0;
          phase ^= 1;
        }
        copy_next(i, stage, phase);
      }
      receive(i, stage, phase);
      if (!AttendsAny<kPieces>(stages + entry_of(stage), warp / 4)) {
        if (before >= 0) {
          wgmma::Pin(sums);
          wgmma::Fence();
          multiply_values(before);
          wgmma::Wait<0>();
          wgmma::Pin(sums);
          ArriveOnce(empty + before);
          before = -1;
        }
        ArriveOnce(empty + stage);
        continue;
      }
      wgmma::Pin(sums);
      wgmma::Fence();
      multiply_keys(stage);
      if (before >= 0) {
        multiply_values(before);
      } else {
        wgmma::Commit();
      }
      wgmma::Wait<1>();
      wgmma::Pin(scores);
      const Keys keys = admitted(i, stage);
      const Weighing weighing = bound(i, stage, keys);
      wgmma::Wait<0>();
      wgmma::Pin(sums);
      if (before >= 0) ArriveOnce(empty + before);
      Weigh(scores, queries, weighing, params, keys);
      pack();
      Apply(rescale, sums);
      before = stage;
    }
    stage = before;
  } else {
    receive(0, 0, 0);
    wgmma::Fence();
    multiply_keys(0);
    wgmma::Wait<0>();
    wgmma::Pin(scores);
    Weigh(scores, queries, bound(0, 0, Keys()), params, Keys());
    pack();
    for (int32_t i = 1; i < count; ++i) {
      const int32_t before = stage;
      if (++stage == kStages) {
        stage = 0;
        phase ^= 1;
      }
      copy_next(i, stage, phase);
      receive(i, stage, phase);
      wgmma::Pin(sums);
      wgmma::Fence();
      multiply_keys(stage);
      multiply_values(before);
      wgmma::Wait<1>();
      wgmma::Pin(scores);
      const Weighing weighing = bound(i, stage, Keys());
      wgmma::Wait<0>();
      wgmma::Pin(sums);
      ArriveOnce(empty + before);
      Weigh(scores, queries, weighing, params, Keys());
      pack();
      Apply(rescale, sums);
    }
  }
  if (!kSparse || stage >= 0) {
    wgmma::Fence();
    multiply_values(stage);
    wgmma::Wait<0>();
    wgmma::Pin(sums);
  }
  AllowNext();
  StoreQueries<64, kSparse>(params, tile, work, first_query, queries, sums);
#else
  __trap();
#endif
}

}  // namespace eta::cuda
