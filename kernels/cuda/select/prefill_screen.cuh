// SelectPrefillBlocks on tensor cores: which full blocks rows of sparse prefill attend to
// (eta-semantics.md, "Sparse prefill" and "Selection", steps 1 to 5), with the arithmetic by which
// decode rows are screened (screen_bounds.cuh, screen_outlier.cuh).
//
// A warp has up to 16 queries, all heads of a KV head for a few neighbouring rows, and walks over
// all of their blocks, 16 at a time. The CTA's warps share the records. So pinning, rescue, shared
// reads and counts need nothing from other warps, and nothing depends on how rows are cut.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/select/always_read.cuh"
#include "kernels/cuda/select/launch_prefill_screen.h"
#include "kernels/cuda/select/prefill_query_masks.cuh"
#include "kernels/cuda/select/screen_bounds.cuh"
#include "kernels/cuda/select/screen_outlier.cuh"

namespace eta::cuda {

inline constexpr int kPrefillScreenThreads = 32 * kPrefillScreenWarps;
inline constexpr int kStageBlocks = 64;  // those of a mask's word

// One KV head's records of kStageBlocks blocks in shared memory: the vectors of a block, then its
// scalars, then a gap, so that lanes fall into different banks (ItemShape has the rule).
struct RecordStage {
  __device__ __forceinline__ explicit RecordStage(const KvTile& tile)
      : vector_bytes(static_cast<uint32_t>(tile.Mu(1))),
        scalar_bytes(static_cast<uint32_t>(tile.scalar_bytes())),
        stride(RecordStride(tile)) {}

  // All threads request the records of blocks [first, end) of a sequence.
  __device__ __forceinline__ void Request(const PrefillScreenArgs& args, const int32_t* table,
                                          int32_t kv_head, int32_t first, int32_t end,
                                          std::byte* to) const {
    const KvTile& tile = args.tile;
    const auto pieces = static_cast<int32_t>(vector_bytes / 16);
    const int32_t each = pieces + 1;  // the last one is the scalars
    for (int32_t i = threadIdx.x; i < (end - first) * each; i += kPrefillScreenThreads) {
      const int32_t block = i / each;
      const int32_t piece = i % each;
      const std::byte* record =
          args.records + static_cast<size_t>(table[first + block]) * tile.record_bytes();
      std::byte* at = to + static_cast<uint32_t>(block) * stride + piece * 16;
      if (piece < pieces) {
        CopyAsync<16>(at, record + tile.Mu(kv_head) + piece * 16);
      } else if (scalar_bytes == 16) {
        CopyAsync<16>(at, record + tile.Scalars(kv_head));
      } else {
        CopyAsync<4>(at, record + tile.Scalars(kv_head));
      }
    }
  }

  uint32_t vector_bytes;
  uint32_t scalar_bytes;
  uint32_t stride;
};

// Calls visit(records, first_block) for every 16 blocks before `warp_end`, in order, and
// end_of_word(word) after every 64; all warps share the walk over blocks [0, end).
template <int D, typename Index, typename Visit, typename EndOfWord>
__device__ __forceinline__ void WalkRecords(const PrefillScreenArgs& args, const int32_t* table,
                                            int32_t kv_head, int32_t end, int32_t warp_end,
                                            std::byte* stages, const Visit& visit,
                                            const EndOfWord& end_of_word) {
  const RecordStage stage(args.tile);
  const uint32_t stage_bytes = kStageBlocks * stage.stride;
  const int32_t lane = threadIdx.x % 32;
  __syncthreads();  // the last walk has ended
  stage.Request(args, table, kv_head, 0, min(end, kStageBlocks), stages);
  CommitGroup();
  for (int32_t first = 0, side = 0; first < end; first += kStageBlocks, side ^= 1) {
    const int32_t next = first + kStageBlocks;
    if (next < end) {
      stage.Request(args, table, kv_head, next, min(end, next + kStageBlocks),
                    stages + (side ^ 1) * stage_bytes);
    }
    CommitGroup();
    WaitGroups<1>();
    __syncthreads();
    const std::byte* own = stages + side * stage_bytes + lane / 4 * stage.stride;
#pragma unroll 1
    for (int32_t block = first; block < min(next, warp_end); block += 16) {
      const std::byte* record = own + static_cast<uint32_t>(block - first) * stage.stride;
      ScreenRecords<D, Index> records;
      records.Read(record, record + stage.vector_bytes, 8 * stage.stride);
      visit(records, block);
    }
    if (first < warp_end) end_of_word(first / kStageBlocks);
    __syncthreads();
  }
}

// A CTA takes some rows of one sequence and one KV head, a warp a few of these rows.
template <int D, int HeadTiles, typename Index, bool kRelative>
__global__ void __launch_bounds__(kPrefillScreenThreads, 1)
    PrefillScreenKernel(const __grid_constant__ PrefillScreenArgs args) {
  extern __shared__ __align__(128) std::byte stages[];
  using Masks = ColumnMasks<HeadTiles>;
  WaitForPrevious();
  AllowNext();
  if (blockIdx.x == 0 && threadIdx.x == 0) args.plan->lists_made = 0;
  const ScreenWork work(args);
  if (work.sequence.num_rows == 0) return;
  const int32_t kv_head = work.kv_head;
  const int32_t* table = args.step.tables + work.sequence.table_begin;
  const StepRow& row = args.step.rows[work.sequence.row_begin + work.begin];
  Masks masks(args, work.RowsOfWarp(args), row.attention);
  const int64_t first_head = static_cast<int64_t>(kv_head) * masks.group;
  const float* head_z = HeadZ(args.step, row, args.num_query_heads, first_head);
  const float offset = row.attention.offset;
  ScreenQueries<D, HeadTiles> queries;
  queries.LoadColumns(
      [&](int column) {
        return column < masks.num_queries ? args.q + masks.Row(column) * args.q_stride +
                                                (first_head + column % masks.group) * D
                                          : nullptr;
      },
      [&](int column) {
        return column < masks.num_queries
                   ? args.thresholds[masks.Row(column) * args.thresholds_stride + first_head +
                                     column % masks.group] -
                         offset
                   : INFINITY;
      },
      [&](int column) {
        return head_z != nullptr && column < masks.num_queries ? head_z[column % masks.group]
                                                               : row.attention.z;
      },
      args.centre != nullptr ? args.centre + kv_head * D : nullptr, args.scale);

  const int32_t num_full = work.FullBlocks(args);
  const int32_t warp_full = masks.rows.num_rows > 0 ? masks.FullBlocks(masks.num_queries - 1) : 0;
  if constexpr (kRelative) {
    if (row.attention.relative) {
      RowSums<HeadTiles> sums;
      sums.AddAlwaysRead(args, masks, queries, table, kv_head);
      WalkRecords<D, Index>(
          args, table, kv_head, num_full, warp_full, stages,
          [&](auto& records, int32_t block) {
            ScreenMasses<HeadTiles> of_blocks;
            EstimateMasses(records, queries, args.rule, of_blocks);
            sums.AddTerms(of_blocks, masks, block);
          },
          [](int32_t) {});
      sums.WriteThresholds(args, masks, row.attention, queries.threshold);
      WalkRecords<D, Index>(
          args, table, kv_head, num_full, warp_full, stages,
          [&](auto& records, int32_t block) {
            ScreenMasses<HeadTiles> of_blocks;
            EstimateMasses(records, queries, args.rule, of_blocks);
            masks.Add(of_blocks.mass, queries.threshold, block);
          },
          [&](int32_t word) { masks.Store(args, word); });
      masks.Finish(args, (warp_full + kStageBlocks - 1) / kStageBlocks);
      return;
    }
  }
  WalkRecords<D, Index>(
      args, table, kv_head, num_full, warp_full, stages,
      [&](auto& records, int32_t block) {
        float bounds[HeadTiles][4];
        UpperBounds(records, queries, bounds);
        masks.Add(bounds, queries.threshold, block);
      },
      [&](int32_t word) { masks.Store(args, word); });
  masks.Finish(args, (warp_full + kStageBlocks - 1) / kStageBlocks);
}

template <typename Index, bool kRelative, int D, int HeadTiles>
void LaunchPrefillScreen(Context& context, const PrefillScreenArgs& args, uint32_t pieces) {
  Launch(context.device, "screen of prefill",
         {.grid = dim3(pieces * static_cast<uint32_t>(args.tile.num_kv_heads)),
          .block = dim3(kPrefillScreenThreads),
          .shared_bytes = size_t{2} * kStageBlocks * RecordStride(args.tile)},
         PrefillScreenKernel<D, HeadTiles, Index, kRelative>, args);
}

// Launches the kernel for one kind of index.
template <typename Index, bool kRelative>
void LaunchPrefillScreen(Context& context, const PrefillScreenArgs& args, uint32_t pieces) {
  const bool two = PrefillHeadTiles(args.tile.head_dim, args.group()) == 2;
  switch (args.tile.head_dim) {
    case 64:
      return LaunchPrefillScreen<Index, kRelative, 64, 2>(context, args, pieces);
    case 96:
      return two ? LaunchPrefillScreen<Index, kRelative, 96, 2>(context, args, pieces)
                 : LaunchPrefillScreen<Index, kRelative, 96, 1>(context, args, pieces);
    case kWideHeadDim:
      return LaunchPrefillScreen<Index, kRelative, kWideHeadDim, 1>(context, args, pieces);
    default:
      return two ? LaunchPrefillScreen<Index, kRelative, 128, 2>(context, args, pieces)
                 : LaunchPrefillScreen<Index, kRelative, 128, 1>(context, args, pieces);
  }
}

}  // namespace eta::cuda
