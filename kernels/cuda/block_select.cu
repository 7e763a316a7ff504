#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/screen.cuh"
#include "kernels/cuda/screen_bounds.cuh"
#include "kernels/cuda/screen_items.cuh"
#include "kernels/cuda/screen_pack.cuh"

namespace eta::cuda {
namespace {

// Raises the best bound of each head among the row's first rescue_chunk blocks; `limit` is where
// these end. best: [group] of the row and KV head.
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

// What a warp does of its CTA's share: bounds of 16 blocks at a time against the thresholds of
// their KV head.
template <int D, int HeadTiles, typename Index>
class ScreenWarp {
 public:
  __device__ ScreenWarp(const ScreenArgs& args, const ScreenCursor& cursor)
      : args_(args),
        cursor_(cursor),
        lane_(static_cast<int32_t>(threadIdx.x % 32)),
        group_(args.num_query_heads / args.tile.num_kv_heads) {}

  // The first records are requested while the kernel before still runs, if they are settled. Later
  // on a warp requests the next as soon as its products have been issued, and finishes meanwhile.
  __device__ void Run() {
    LookUp();
    const bool settled = next_.row >= 0 && min(next_.first_block + kWarpBlocks, next_.num_full) <=
                                               cursor_.SettledBlocks();
    if (!settled) WaitForPrevious();
    ScreenItem item = Request();
    if (settled) WaitForPrevious();
    AllowNext();
    while (item.row >= 0) {
      if (item.row != row_ || item.kv_head != kv_head_) Enter(item);
      ScreenSums<D, HeadTiles, Index> sums;
      sums.Add(records_, queries_);
      const Scalars scalars[2] = {records_.scalars[0], records_.scalars[1]};
      const ScreenItem next = Request();
      Finish(item, sums, scalars);
      item = next;
    }
  }

 private:
  using Records = ScreenRecords<D, Index>;
  using Scalars = typename Records::Scalars;

  // Makes next_ the item to be requested and finds its physical blocks.
  __device__ __forceinline__ void LookUp() {
    next_ = cursor_.Next();
    if (next_.row < 0) return;
    const int32_t* table = args_.step.tables + cursor_.table_begin();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t block = next_.first_block + lane_ / 4 + 8 * i;
      physical_[i] = static_cast<uint32_t>(table[min(block, next_.num_full - 1)]);
    }
  }

  // Requests the records of next_, which it returns, and looks up the item behind.
  __device__ __forceinline__ ScreenItem Request() {
    const ScreenItem item = next_;
    if (item.row < 0) return item;
    const std::byte* from[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      from[i] = args_.records + static_cast<uint64_t>(physical_[i]) * args_.record_bytes;
    }
    records_.Read(from, static_cast<uint32_t>(item.kv_head),
                  static_cast<uint32_t>(args_.tile.num_kv_heads));
    LookUp();
    return item;
  }

  // Reads what is of the item's row and KV head.
  __device__ __forceinline__ void Enter(const ScreenItem& item) {
    row_ = item.row;
    kv_head_ = item.kv_head;
    const StepRow& step_row = args_.step.rows[row_];
    z_ = step_row.z;
    rescue_chunk_ = step_row.rescue_chunk;
    const int64_t head = static_cast<int64_t>(kv_head_) * group_;
    masks_ = args_.masks +
             (static_cast<int64_t>(row_) * args_.tile.num_kv_heads + kv_head_) * args_.capacity;
    queries_.Load(args_.q + row_ * args_.q_stride + head * D,
                  args_.thresholds + row_ * args_.thresholds_stride + head, group_, args_.scale,
                  step_row.offset);
  }

  __device__ __forceinline__ void Finish(const ScreenItem& item,
                                         const ScreenSums<D, HeadTiles, Index>& sums,
                                         const Scalars (&scalars)[2]) {
    float bounds[HeadTiles][4];
    sums.Bounds(scalars, queries_, z_, bounds);
    uint32_t mask = 0;  // of block r, and shifted by 16 of block r + 8
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (bounds[tile][i] >= queries_.threshold[tile][i % 2]) {
          mask |= 1u << (tile * 8 + i % 2 + i / 2 * 16);
        }
      }
    }
    mask <<= lane_ % 4 * 2;
    mask |= __shfl_xor_sync(0xffffffffu, mask, 1);
    mask |= __shfl_xor_sync(0xffffffffu, mask, 2);
    const int32_t block = item.first_block + lane_ / 4 + lane_ % 4 * 8;
    if (lane_ % 4 < 2 && block < item.num_full) {
      masks_[block] = lane_ % 4 == 0 ? mask & 0xffffu : mask >> 16;
    }
    const int32_t limit = min(rescue_chunk_, item.num_full);
    if (item.first_block < limit) {
      const int64_t head = static_cast<int64_t>(item.row) * args_.num_query_heads +
                           static_cast<int64_t>(item.kv_head) * group_;
      RaiseBest(bounds, item.first_block, limit, group_, args_.best + head);
    }
  }

  const ScreenArgs& args_;
  ScreenCursor cursor_;
  int32_t lane_;
  int32_t group_;
  ScreenItem next_;
  uint32_t physical_[2];  // blocks of next_
  Records records_;       // of the item before next_
  ScreenQueries<D, HeadTiles, kScreenChunk<D, Index>> queries_;
  int32_t row_ = -1;  // what was entered
  int32_t kv_head_ = -1;
  float z_;
  int32_t rescue_chunk_;
  uint32_t* masks_;
};

// Per SM: what registers have room for.
constexpr int ScreenCtas(int head_dim, int head_tiles) {
  if (head_dim == 64) return head_tiles == 1 ? 4 : 3;
  return head_dim == 96 && head_tiles == 1 ? 3 : 2;
}

// Steps 1 and 2 of the selection. A CTA takes an equal, contiguous share of the items, so that it
// rarely changes queries. What is read before WaitForPrevious() was there before the step's first
// kernel: its rows, and records of earlier steps.
template <int D, int HeadTiles, typename Index>
__global__ void __launch_bounds__(kScreenThreads, ScreenCtas(D, HeadTiles))
    ScreenKernel(const __grid_constant__ ScreenArgs args) {
  __shared__ ScreenRow row;
  const ScreenShare share = FindShare(args, row);
  if (share.begin == share.end) {
    WaitForPrevious();
    return;
  }
  ScreenWarp<D, HeadTiles, Index>(args, ScreenCursor(args, share.row, share.begin, share.end))
      .Run();
}

template <int D, int HeadTiles, typename Index>
void LaunchScreen(Context& context, const ScreenArgs& args) {
  Launch(context.device, "screen",
         {.grid = dim3(context.device.num_sms() * ScreenCtas(D, HeadTiles)),
          .block = dim3(kScreenThreads)},
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
  if (SupportsTensorCores(geometry.head_dim, geometry.block_size, group, geometry.dtype)) {
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
                             static_cast<uint32_t>(tile.record_bytes()),
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
  uint32_t* pool_blocks = PoolBlocks(context, rows * geometry.num_kv_heads, params.selection);
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
