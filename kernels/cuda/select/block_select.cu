// SelectBlocks decides which full blocks each decode row reads. A query head admits a block if the
// bound on its scores, from q [R, HQ * d] and the block's record, reaches tau_eff. The last blocks
// are pinned, and an empty head rescues its best block. The result is one ascending list of blocks
// per (row, KV head), with the heads of the group that admitted each (eta-semantics.md,
// "Selection", steps 1 to 4).
//
// Bytes of records bind, and issuing their copies. Screening (this file, screen_items.cuh,
// screen_bounds.cuh) writes a mask of heads per block. Compaction (screen_pack.cuh) pins, rescues
// and packs the masks into lists.

#include <algorithm>

#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/select/screen.cuh"
#include "kernels/cuda/select/screen_bounds.cuh"
#include "kernels/cuda/select/screen_items.cuh"
#include "kernels/cuda/select/screen_pack.cuh"

namespace eta::cuda {
namespace {

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

// A warp's work on each item: it compares the bounds of its 16 blocks with the thresholds of its KV
// head.
template <int D, int HeadTiles, typename Index>
__device__ __forceinline__ void ScreenItems(const ScreenArgs& args, ScreenCursor cursor,
                                            ScreenRing& ring, const std::byte* stages) {
  const ItemShape shape(args.tile);
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t own_kv_head = warp % shape.kv_heads;
  const int32_t own_block = warp / shape.kv_heads * kWarpBlocks;
  const int32_t group = args.num_query_heads / args.tile.num_kv_heads;
  const std::byte* block_at = stages + (own_block + lane / 4) * shape.stride();
  const std::byte* vectors = block_at + own_kv_head * D * 2 * sizeof(Index);
  const std::byte* scalars = nullptr;

  ScreenQueries<D, HeadTiles> queries;
  int32_t rescue_chunk = 0;
  uint32_t* masks = nullptr;
  unsigned long long* best = nullptr;
  int32_t row = -1;
  int32_t first_kv_head = -1;
  const auto enter = [&](const ScreenItem& item) {
    row = item.row;
    first_kv_head = item.first_kv_head;
    const int32_t kv_head = first_kv_head + own_kv_head;
    const StepRow& step_row = args.step.rows[row];
    rescue_chunk = step_row.rescue_chunk;
    const int64_t head = static_cast<int64_t>(kv_head) * group;
    masks =
        args.masks + (static_cast<int64_t>(row) * args.tile.num_kv_heads + kv_head) * args.capacity;
    best = args.best + static_cast<int64_t>(row) * args.num_query_heads + head;
    scalars = block_at + shape.vector_bytes + shape.Scalars(kv_head);
    queries.Load(args.q + row * args.q_stride + head * D,
                 args.thresholds + row * args.thresholds_stride + head,
                 HeadZ(args.step, step_row, args.num_query_heads, head), group, args.scale,
                 step_row);
  };
  WaitForPrevious();
  AllowNext();
  int stage = 0;
  uint32_t phase = 0;
  for (ScreenItem item = cursor.Next(); item.row >= 0; item = cursor.Next()) {
    if (item.row != row || item.first_kv_head != first_kv_head) enter(item);
    Wait(&ring.full[stage], phase);
    const uint32_t offset = stage * shape.bytes();
    ScreenRecords<D, Index> records;
    records.Read(vectors + offset, scalars + offset, 8 * shape.stride());
    __syncwarp();
    if (lane == 0) Arrive(&ring.empty[stage]);
    if (++stage == args.num_stages) {
      stage = 0;
      phase ^= 1;
    }
    const int32_t first_block = item.first_block + own_block;
    if (first_block >= item.num_full) continue;

    float bounds[HeadTiles][4];
    UpperBounds(records, queries, bounds);
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
    const int32_t limit = min(rescue_chunk, item.num_full);
    if (first_block < limit) RaiseBest(bounds, first_block, limit, group, best);
  }
}

// CTAs that the registers and shared memory of a multiprocessor hold.
constexpr int ScreenCtas(int head_dim, int head_tiles) {
  return head_dim > 64 && head_tiles == 2 ? 1 : 2;
}

// CTAs that registers must have room for. Where possible there is room for one CTA more: the kernel
// behind uses it, since it begins while this one ends.
constexpr int BoundedCtas(int head_dim, int head_tiles) {
  return head_dim == 64 && head_tiles == 1 ? 3 : ScreenCtas(head_dim, head_tiles);
}

// Steps 1 and 2 of the selection. A CTA takes an equal, contiguous share of the items, so it rarely
// changes queries. What it reads before WaitForPrevious() was there before the step's first kernel:
// the step's rows, and records of earlier steps.
template <int D, int HeadTiles, typename Index>
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
    ScreenItems<D, HeadTiles, Index>(args, cursor, ring, stages);
  }
}

template <int D, int HeadTiles, typename Index>
void LaunchScreen(Context& context, const ScreenArgs& args) {
  Launch(context.device, "screen",
         {.grid = dim3(context.device.num_sms() * ScreenCtas(D, HeadTiles)),
          .block = dim3(kScreenThreads),
          .shared_bytes = static_cast<size_t>(args.num_stages) * ItemShape(args.tile).bytes()},
         ScreenKernel<D, HeadTiles, Index>, args);
}

template <int D, typename Index>
void LaunchScreen(Context& context, const ScreenArgs& args, int32_t head_tiles) {
  if (head_tiles == 1) {
    LaunchScreen<D, 1, Index>(context, args);
  } else {
    LaunchScreen<D, 2, Index>(context, args);
  }
}

template <typename Index>
void LaunchScreen(Context& context, const ScreenArgs& args, int32_t head_tiles) {
  if (args.tile.head_dim == 64) {
    LaunchScreen<64, Index>(context, args, head_tiles);
  } else if (args.tile.head_dim == 96) {
    LaunchScreen<96, Index>(context, args, head_tiles);
  } else {
    LaunchScreen<128, Index>(context, args, head_tiles);
  }
}

// The number of items in shared memory that each CTA has room for.
int32_t ScreenStages(const Device& device, const KvTile& tile, int32_t head_tiles) {
  constexpr size_t kReserved = 1024;  // the system's part of each CTA
  const size_t per_cta = (device.shared_memory_per_block() + kReserved) /
                             static_cast<size_t>(ScreenCtas(tile.head_dim, head_tiles)) -
                         kReserved - sizeof(ScreenRing) - sizeof(ScreenRow) - 128;
  return static_cast<int32_t>(
      std::min<size_t>(per_cta / ItemShape(tile).bytes(), kMaxScreenStages));
}

}  // namespace

void SelectBlocks(Context& context, const SelectBlocksParams& params, const DeviceCounts& counts) {
  const KvGeometry& geometry = params.geometry;
  const int32_t group = params.num_query_heads / geometry.num_kv_heads;
  const int64_t rows = context.step.num_rows;
  auto* best = reinterpret_cast<unsigned long long*>(
      context.scratch.Get(Scratch::Use::kRescue,
                          static_cast<size_t>(rows * params.num_query_heads) * sizeof(uint64_t)));
  if (best == nullptr) return;
  const KvTile tile(geometry);
  const int32_t head_tiles = group <= 8 ? 1 : 2;
  const int32_t num_stages = ScreenStages(context.device, tile, head_tiles);
  // Devices with too little shared memory for a ring use the plain form.
  if (SupportsTensorCores(geometry.head_dim, geometry.block_size, group, geometry.dtype) &&
      num_stages >= 2) {
    const ScreenArgs args = {context.step,
                             params.q.data,
                             params.q.stride,
                             params.thresholds.data,
                             params.thresholds.stride,
                             params.kv.records,
                             params.selection.heads,
                             best,
                             params.selection.capacity,
                             params.num_query_heads,
                             num_stages,
                             params.softmax_scale,
                             tile};
    if (tile.narrow_index) {
      LaunchScreen<int8_t>(context, args, head_tiles);
    } else {
      LaunchScreen<Half>(context, args, head_tiles);
    }
  } else {
    PlainScreen(context, params, reinterpret_cast<uint64_t*>(best));
  }
  uint32_t* pool_blocks = PoolBlocks(context, geometry.num_kv_heads, params.selection);
  if (pool_blocks == nullptr) return;
  const PackArgs pack = {context.step,
                         params.selection,
                         pool_blocks,
                         best,
                         counts.tokens_attended,
                         counts.tokens_read,
                         params.num_query_heads,
                         geometry.num_kv_heads,
                         geometry.block_size};
  Launch(context.device, "pack blocks",
         {.grid = dim3(static_cast<unsigned>(rows * geometry.num_kv_heads)),
          .block = dim3(kPackThreads)},
         PackKernel, pack);
}

}  // namespace eta::cuda
