#include <algorithm>

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

// What one warp does of each item: bounds of its 16 blocks against the thresholds of its KV head.
template <int D, int HeadTiles, int kStages>
__device__ void ScreenItems(const ScreenArgs& args, ScreenCursor cursor, ScreenRing<kStages>& ring,
                            const std::byte* stages) {
  const ItemShape shape(args.tile);
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t own_kv_head = warp % shape.kv_heads;
  const int32_t own_block = warp / shape.kv_heads * kWarpBlocks;
  const int32_t group = args.num_query_heads / args.tile.num_kv_heads;
  const std::byte* block_at = stages + (own_block + lane / 4) * shape.stride();
  const std::byte* vectors = block_at + own_kv_head * D * 4 + lane % 4 * 16;
  const std::byte* max_norms = nullptr;

  ScreenQueries<D, HeadTiles> queries;
  float z = 0.0f;
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
    z = step_row.z;
    rescue_chunk = step_row.rescue_chunk;
    const int64_t head = static_cast<int64_t>(kv_head) * group;
    masks =
        args.masks + (static_cast<int64_t>(row) * args.tile.num_kv_heads + kv_head) * args.capacity;
    best = args.best + static_cast<int64_t>(row) * args.num_query_heads + head;
    max_norms = block_at + shape.vector_bytes + kv_head % 4 * 4;
    queries.Load(args.q + row * args.q_stride + head * D,
                 args.thresholds + row * args.thresholds_stride + head, group, args.scale,
                 step_row.offset);
  };
  WaitForPrevious();
  AllowNext();
  int stage = 0;
  uint32_t phase = 0;
  for (ScreenItem item = cursor.Next(); item.row >= 0; item = cursor.Next()) {
    if (item.row != row || item.first_kv_head != first_kv_head) enter(item);
    Wait(&ring.full[stage], phase);
    const uint32_t offset = stage * shape.bytes();
    const uint32_t eight = 8 * shape.stride();
    ScreenRecords<D> records;
    records.Read(vectors + offset, eight);
    records.max_norm[0] = *reinterpret_cast<const float*>(max_norms + offset);
    records.max_norm[1] = *reinterpret_cast<const float*>(max_norms + offset + eight);
    __syncwarp();
    if (lane == 0) Arrive(&ring.empty[stage]);
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
    const int32_t first_block = item.first_block + own_block;
    if (first_block >= item.num_full) continue;

    float bounds[HeadTiles][4];
    UpperBounds(records, queries, z, bounds);
    uint32_t mask = 0;  // of block r, and shifted by 16 of block r + 8
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

template <int D>
constexpr int kScreenStages = D == 64 ? 4 : 3;
// Per SM: what registers and shared memory have room for.
template <int D, int HeadTiles>
constexpr int kScreenCtas = D > 64 && HeadTiles == 2 ? 1 : 2;

// Steps 1 and 2 of the selection. A CTA takes an equal, contiguous share of the items, so that it
// rarely changes queries. What is read before WaitForPrevious() was there before the step's first
// kernel.
template <int D, int HeadTiles>
__global__ void __launch_bounds__(kScreenThreads, (kScreenCtas<D, HeadTiles>))
    ScreenKernel(const __grid_constant__ ScreenArgs args) {
  constexpr int kStages = kScreenStages<D>;
  extern __shared__ __align__(128) std::byte stages[];
  __shared__ ScreenRing<kStages> ring;
  __shared__ ScreenRow row;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
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
    ScreenItems<D, HeadTiles>(args, cursor, ring, stages);
  }
}

template <int D, int HeadTiles>
void LaunchScreen(Context& context, const ScreenArgs& args) {
  Launch(context.device, "screen",
         {.grid = dim3(context.device.num_sms() * kScreenCtas<D, HeadTiles>),
          .block = dim3(kScreenThreads),
          .shared_bytes = kScreenStages<D> * static_cast<size_t>(ItemShape(args.tile).bytes())},
         ScreenKernel<D, HeadTiles>, args);
}

template <int D>
void LaunchScreen(Context& context, const ScreenArgs& args, int32_t group) {
  if (group <= 8) {
    LaunchScreen<D, 1>(context, args);
  } else {
    LaunchScreen<D, 2>(context, args);
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
  // Devices with less shared memory than the ring takes screen plainly.
  const int stages = geometry.head_dim == 64 ? kScreenStages<64> : kScreenStages<128>;
  const size_t ring_bytes = static_cast<size_t>(stages) * ItemShape(KvTile(geometry)).bytes();
  if (SupportsTensorCores(geometry.head_dim, geometry.block_size, group, geometry.dtype) &&
      ring_bytes + 4096 <= context.device.shared_memory_per_block()) {
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
                             params.softmax_scale,
                             KvTile(geometry)};
    if (geometry.head_dim == 64) {
      LaunchScreen<64>(context, args, group);
    } else if (geometry.head_dim == 96) {
      LaunchScreen<96>(context, args, group);
    } else {
      LaunchScreen<128>(context, args, group);
    }
  } else {
    PlainScreen(context, params, reinterpret_cast<uint64_t*>(best));
  }
  const PackArgs pack = {context.step,           params.selection,   best,
                         counts.tokens_attended, counts.tokens_read, params.num_query_heads,
                         geometry.num_kv_heads,  geometry.block_size};
  Launch(context.device, "pack blocks",
         {.grid = dim3(static_cast<unsigned>(rows * geometry.num_kv_heads)),
          .block = dim3(kPackThreads)},
         PackKernel, pack);
}

}  // namespace eta::cuda
