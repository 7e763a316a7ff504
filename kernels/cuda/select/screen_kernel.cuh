// Screening on tensor cores, the first part of SelectBlocks (steps 1 and 2 of the selection): a
// mask of heads per block, or for rows with relative thresholds the masses that compaction
// compares.
#pragma once

#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/select/launch_screen.h"
#include "kernels/cuda/select/screen.cuh"
#include "kernels/cuda/select/screen_bounds.cuh"
#include "kernels/cuda/select/screen_items.cuh"
#include "kernels/cuda/select/screen_outlier.cuh"

namespace eta::cuda {

// Raises the best bound of each head among the row's first rescue_chunk blocks, which end at
// `limit`. best: [group] of the row and KV head.
template <int HeadTiles>
__device__ void RaiseBest(const float (&bounds)[HeadTiles][4], int32_t first_block, int32_t limit,
                          int32_t group, unsigned long long* best) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
  for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint64_t key = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t block = first_block + lane / 4 + half * 8;
        if (block < limit) key = max(key, BoundKey(bounds[tile][i + 2 * half], block));
      }
      for (int step = 4; step < 32; step *= 2) {
        key = max(key, __shfl_xor_sync(0xffffffffu, key, step));
      }
      const int32_t head = tile * 8 + lane % 4 * 2 + i;
      if (lane < 4 && head < group && key != 0) {
        atomicMax(best + head, static_cast<unsigned long long>(key));
      }
    }
  }
}

// Writes what relative thresholds need of a warp's 16 blocks: their masses, from `of_list` on, and
// the sum of the terms of those that are not always read, at `sums` [HQ of the group, pieces].
template <int HeadTiles>
__device__ __forceinline__ void LeaveMasses(const ScreenMasses<HeadTiles>& masses,
                                            const MassScratch& scratch, const AlwaysRead& always,
                                            int32_t first_block, int32_t num_full, int32_t group,
                                            float* of_list, float* sums) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  bool counts[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t block = first_block + lane / 4 + half * 8;
    counts[half] = block < num_full && !always.Has(block);
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
      const int32_t head = tile * 8 + lane % 4 * 2;
      if (block >= num_full || head >= scratch.stride) continue;
      *reinterpret_cast<float2*>(of_list + static_cast<int64_t>(block) * scratch.stride + head) =
          make_float2(masses.mass[tile][2 * half], masses.mass[tile][2 * half + 1]);
    }
  }
#pragma unroll
  for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t head = tile * 8 + lane % 4 * 2 + i;
      const float sum = SumOfTerms(masses, tile, i, counts);
      if (lane < 4 && head < group) {
        sums[static_cast<int64_t>(head) * scratch.pieces + first_block / kMassBlocks] = sum;
      }
    }
  }
}

// A warp's work on each item: it compares the bounds of its 16 blocks with the thresholds of its KV
// head. With kRelative there may be rows with relative thresholds.
template <int D, int HeadTiles, typename Index, bool kRelative>
__device__ __forceinline__ void ScreenItems(const ScreenArgs& args, ScreenCursor cursor,
                                            ScreenRing& ring, const std::byte* stages) {
  constexpr bool kSliced = kInSlices<D>;  // records are read until the bounds are there
  const ItemShape shape(args.tile);
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t own_kv_head = warp % shape.kv_heads;
  const int32_t own_block = warp / shape.kv_heads * kWarpBlocks;
  const int32_t group = args.num_query_heads / args.tile.num_kv_heads;
  const std::byte* block_at = stages + (own_block + lane / 4) * shape.stride();
  const std::byte* vectors = block_at + own_kv_head * args.tile.Mu(1);
  const std::byte* scalars = nullptr;

  ScreenQueries<D, HeadTiles> queries;
  int32_t rescue_chunk = 0;
  uint32_t* masks = nullptr;
  unsigned long long* best = nullptr;
  [[maybe_unused]] bool relative = false;
  int32_t row = -1;
  int32_t first_kv_head = -1;
  const auto enter = [&](const ScreenItem& item) {
    row = item.row;
    first_kv_head = item.first_kv_head;
    const int32_t kv_head = first_kv_head + own_kv_head;
    const StepRow& step_row = args.step.rows[row];
    rescue_chunk = step_row.attention.rescue_chunk;
    const int64_t head = static_cast<int64_t>(kv_head) * group;
    masks =
        args.masks + (static_cast<int64_t>(row) * args.tile.num_kv_heads + kv_head) * args.capacity;
    best = args.best + static_cast<int64_t>(row) * args.num_query_heads + head;
    scalars = block_at + shape.vector_bytes + shape.Scalars(kv_head);
    relative = step_row.attention.relative;
    queries.Load(args.q + row * args.q_stride + head * D,
                 args.thresholds + row * args.thresholds_stride + head,
                 HeadZ(args.step, step_row, args.num_query_heads, head),
                 args.centre != nullptr ? args.centre + kv_head * D : nullptr, group, args.scale,
                 step_row.attention);
  };
  WaitForPrevious();
  AllowNext();
  int stage = 0;
  uint32_t phase = 0;
  for (ScreenItem item = cursor.Next(); item.row >= 0; item = cursor.Next()) {
    if (item.row != row || item.first_kv_head != first_kv_head) enter(item);
    Wait(&ring.full[stage], phase);
    const uint32_t offset = stage * shape.bytes();
    const auto release = [&ring, lane](int of_stage) {
      __syncwarp();
      if (lane == 0) Arrive(&ring.empty[of_stage]);
    };
    ScreenRecords<D, Index> records;
    records.Read(vectors + offset, scalars + offset, 8 * shape.stride());
    const int held = stage;
    if constexpr (!kSliced) release(held);
    if (++stage == args.num_stages) {
      stage = 0;
      phase ^= 1;
    }
    const int32_t first_block = item.first_block + own_block;
    if (first_block >= item.num_full) {
      if constexpr (kSliced) release(held);
      continue;
    }
    const int32_t limit = min(rescue_chunk, item.num_full);
    if constexpr (kRelative) {
      if (relative) {
        ScreenMasses<HeadTiles> of_blocks;
        EstimateMasses(records, queries, args.rule, of_blocks);
        if constexpr (kSliced) release(held);
        const StepRow& step_row = args.step.rows[row];
        const int32_t kv_head = first_kv_head + own_kv_head;
        const int64_t list = static_cast<int64_t>(row) * args.tile.num_kv_heads + kv_head;
        LeaveMasses(of_blocks, args.masses,
                    AlwaysRead(step_row.attention.sink_blocks, step_row.attention.pinned_blocks,
                               item.num_full),
                    first_block, item.num_full, group, args.masses.Masses(list),
                    args.masses.sums + list * group * args.masses.pieces);
        if (first_block < limit) RaiseBest(of_blocks.mass, first_block, limit, group, best);
        continue;
      }
    }

    float bounds[HeadTiles][4];
    UpperBounds(records, queries, bounds);
    if constexpr (kSliced) release(held);
    uint32_t mask = 0;  // low 16 bits: block r; high 16 bits: block r + 8
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (bounds[tile][i] >= queries.threshold[tile][i % 2]) {
          mask |= 1u << (tile * 8 + i % 2 + i / 2 * 16);
        }
      }
    }
    mask <<= lane % 4 * 2;
    mask |= __shfl_xor_sync(0xffffffffu, mask, 1);
    mask |= __shfl_xor_sync(0xffffffffu, mask, 2);
    const int32_t block = first_block + lane / 4 + lane % 4 * 8;
    if (lane % 4 < 2 && block < item.num_full) {
      masks[block] = lane % 4 == 0 ? mask & 0xffffu : mask >> 16;
    }
    if (first_block < limit) RaiseBest(bounds, first_block, limit, group, best);
  }
}

// CTAs that registers must have room for. Where possible there is room for one CTA more: the kernel
// behind uses it, since it begins while this one ends.
constexpr int BoundedCtas(int head_dim, int head_tiles) {
  return head_dim == 64 && head_tiles == 1 ? 3 : ScreenCtas(head_dim, head_tiles);
}

// Steps 1 and 2 of the selection. A CTA takes an equal, contiguous share of the items, so it rarely
// changes queries. What it reads before WaitForPrevious() was there before the step's first kernel:
// the step's rows, and records of earlier steps.
template <int D, int HeadTiles, typename Index, bool kRelative>
__global__ void __launch_bounds__(kScreenThreads, BoundedCtas(D, HeadTiles))
    ScreenKernel(const __grid_constant__ ScreenArgs args) {
  extern __shared__ __align__(128) std::byte stages[];
  __shared__ ScreenRing ring;
  __shared__ ScreenRow row;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < args.num_stages; ++stage) {
      InitBarrier(&ring.full[stage], kCopyArrivals);
      InitBarrier(&ring.empty[stage], kScreenWarps);
    }
    PublishBarriers();
  }
  const ScreenShare share = FindShare(args, row);
  if (share.begin == share.end) {
    WaitForPrevious();
    return;
  }
  const ScreenCursor cursor(args, share.row, share.begin, share.end);
  if (threadIdx.x / 32 == kScreenWarps) {
    BringItems(args, cursor, ring, stages);
  } else {
    ScreenItems<D, HeadTiles, Index, kRelative>(args, cursor, ring, stages);
  }
}

template <typename Index, bool kRelative, int D, int HeadTiles>
void LaunchScreen(Context& context, const ScreenArgs& args) {
  Launch(context.device, "screen",
         {.grid = dim3(context.device.num_sms() * ScreenCtas(D, HeadTiles)),
          .block = dim3(kScreenThreads),
          .shared_bytes = static_cast<size_t>(args.num_stages) * ItemShape(args.tile).bytes()},
         ScreenKernel<D, HeadTiles, Index, kRelative>, args);
}

template <typename Index, bool kRelative, int D>
void LaunchScreen(Context& context, const ScreenArgs& args) {
  if (args.num_query_heads / args.tile.num_kv_heads <= 8) {
    LaunchScreen<Index, kRelative, D, 1>(context, args);
  } else {
    LaunchScreen<Index, kRelative, D, 2>(context, args);
  }
}

// Launches the kernel for one kind of index.
template <typename Index, bool kRelative>
void LaunchScreen(Context& context, const ScreenArgs& args) {
  switch (args.tile.head_dim) {
    case 64:
      return LaunchScreen<Index, kRelative, 64>(context, args);
    case 96:
      return LaunchScreen<Index, kRelative, 96>(context, args);
    case kWideHeadDim:
      return LaunchScreen<Index, kRelative, kWideHeadDim, 1>(context, args);
    default:
      return LaunchScreen<Index, kRelative, 128>(context, args);
  }
}

}  // namespace eta::cuda
