// ConfirmReads decides, from the true scores of its keys, which heads keep a listed block of a
// decode row with confirmed reads (eta-semantics.md, "Confirmed reads"). It replaces the masks of
// the row's lists, so that attention reads nothing of a block without heads, and counts the values
// that are read.
//
// It runs before attention, so the keys of a block that is kept are read twice.

#include <algorithm>

#include "kernels/cuda/device/kv_elements.cuh"
#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/plain/plain_tile.cuh"
#include "kernels/cuda/select/block_mass.cuh"
#include "kernels/cuda/select/plain_products.cuh"
#include "kernels/cuda/select/screen.cuh"

namespace eta::cuda {
namespace {

constexpr int kConfirmThreads = 256;
constexpr int kConfirmWarps = kConfirmThreads / 32;
constexpr int kCtasPerSm = 4;

struct ConfirmArgs {
  StepView step;
  const float* q;
  int64_t q_stride;
  const float* thresholds;
  int64_t thresholds_stride;
  const std::byte* tiles;
  KvTile tile;
  BlockSelection selection;
  const uint32_t* pool_blocks;  // [rows, HKV, capacity]
  const int32_t* tokens_attended;
  const int32_t* tokens_read;
  int32_t* values_read;
  int32_t num_query_heads;
  bool gated;
  float softmax_scale;
};

// Whether four heads keep a block: the largest of its keys' scores, or with relative thresholds
// their log-sum-exp, reaches the threshold. `key_tile`: of the block, which is full block `ordinal`
// of the row. `queries` [4, d], `thresholds` [4] log2 e.
template <typename T>
__device__ __forceinline__ uint32_t KeepingHeads(const ConfirmArgs& args, const StepRow& row,
                                                 const std::byte* key_tile, int32_t ordinal,
                                                 const float* queries, const float* thresholds) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t b = args.tile.block_size;
  const float scale = args.softmax_scale * kLog2E;
  const bool relative = row.attention.relative;
  LogSum of_heads[kHeadsAtOnce];
  for (int32_t token = lane; token < b; token += 32) {
    if (args.gated && plain::IsTempered(args.step, row.tempered, ordinal * b + token)) continue;
    float products[kHeadsAtOnce];
    MultiplyKey<T>(args.tile, key_tile, token, queries, products);
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      const float score = scale * products[h];
      if (relative) {
        of_heads[h].Add(score);
      } else {
        of_heads[h].max = fmaxf(of_heads[h].max, score);
      }
    }
  }
  uint32_t keeping = 0;
#pragma unroll
  for (int h = 0; h < kHeadsAtOnce; ++h) {
    AddOfLanes(of_heads[h], 1, 32);
    const float compared = relative ? of_heads[h].Log() : of_heads[h].max;
    if (compared >= thresholds[h]) keeping |= 1u << h;
  }
  return keeping;
}

// A CTA takes a part of one list; each of its warps takes one entry at a time.
template <typename T>
__global__ void __launch_bounds__(kConfirmThreads)
    ConfirmKernel(const __grid_constant__ ConfirmArgs args) {
  extern __shared__ __align__(16) float queries[];  // [G up to a multiple of 4, d]
  __shared__ __align__(16) float thresholds[kMaxGroup];
  WaitForPrevious();
  AllowNext();
  const int32_t num_kv_heads = args.tile.num_kv_heads;
  const auto row_index = static_cast<int32_t>(blockIdx.x) / num_kv_heads;
  const auto kv_head = static_cast<int32_t>(blockIdx.x) % num_kv_heads;
  const StepRow& row = args.step.rows[row_index];
  if (row.role != RowRole::kDecode || !row.attention.confirm || row.attention.admit_all) return;
  const int64_t list = blockIdx.x;
  const int32_t group = args.num_query_heads / num_kv_heads;
  const int64_t first_head = static_cast<int64_t>(row_index) * args.num_query_heads +
                             static_cast<int64_t>(kv_head) * group;
  const int32_t d = args.tile.head_dim;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % 32;
  const int32_t padded_group = (group + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce;
  const float* q = args.q + row_index * args.q_stride + static_cast<int64_t>(kv_head) * group * d;
  for (int32_t i = thread; i < padded_group * d; i += kConfirmThreads) {
    queries[i] = i < group * d ? q[i] : 0.0f;
  }
  if (thread < kMaxGroup) {
    thresholds[thread] =
        thread < group
            ? kLog2E *
                  (args.thresholds[row_index * args.thresholds_stride + kv_head * group + thread] -
                   row.attention.offset)
            : NAN;
  }
  __syncthreads();

  const int32_t num_tokens = row.position + 1;
  const int32_t num_full = num_tokens / args.tile.block_size;
  const AlwaysRead always(row.attention.sink_blocks, row.attention.pinned_blocks, num_full);
  const bool shared_reads = row.attention.shared_reads;
  // Heads that prune nothing.
  const bool attends_to_all =
      lane < group && (shared_reads ? args.tokens_read[list] == num_tokens
                                    : args.tokens_attended[first_head + lane] == num_tokens);
  const uint32_t unpruned = __ballot_sync(~0u, attends_to_all);
  const int32_t rescued = lane < group ? args.selection.rescued[first_head + lane] : -1;
  const uint32_t* blocks = args.selection.blocks + list * args.selection.capacity;
  const uint32_t* physical = args.pool_blocks + list * args.selection.capacity;
  uint32_t* heads = args.selection.heads + list * args.selection.capacity;
  const int32_t count = args.selection.counts[list];
  int32_t kept_blocks = 0;
  for (auto entry = static_cast<int32_t>(blockIdx.y) * kConfirmWarps + thread / 32; entry < count;
       entry += static_cast<int32_t>(gridDim.y) * kConfirmWarps) {
    const auto ordinal = static_cast<int32_t>(blocks[entry]);
    const uint32_t mask = heads[entry];
    const uint32_t sure = unpruned | __ballot_sync(~0u, rescued == ordinal);
    uint32_t kept = always.Has(ordinal) ? mask : mask & sure;
    const std::byte* key_tile =
        args.tiles + args.tile.K(static_cast<int32_t>(physical[entry]), kv_head);
    // With shared reads one head is enough.
    for (int32_t head = 0; head < group && !(shared_reads && kept != 0); head += kHeadsAtOnce) {
      const uint32_t asked = (mask & ~kept) >> head & ((1u << kHeadsAtOnce) - 1);
      if (asked == 0) continue;
      kept |= (asked &
               KeepingHeads<T>(args, row, key_tile, ordinal, queries + head * d, thresholds + head))
              << head;
    }
    if (kept != 0) ++kept_blocks;
    __syncwarp();  // every lane has read the mask
    if (lane == 0) heads[entry] = shared_reads && kept != 0 ? mask : kept;
  }
  if (lane == 0 && kept_blocks != 0) {
    atomicAdd(args.values_read + list, kept_blocks * args.tile.block_size);
  }
}

}  // namespace

void ConfirmReads(Context& context, const AttentionParams& params, const DeviceCounts& counts) {
  const KvGeometry& geometry = params.geometry;
  const uint32_t* pool_blocks = PoolBlocks(context, geometry.num_kv_heads, params.selection);
  if (pool_blocks == nullptr) return;
  const int64_t rows = std::min<int64_t>(context.step.num_rows, params.selection.rows);
  const ConfirmArgs args = {context.step,
                            params.q.data,
                            params.q.stride,
                            params.thresholds.data,
                            params.thresholds.stride,
                            params.kv.tiles,
                            KvTile(geometry),
                            params.selection,
                            pool_blocks,
                            counts.tokens_attended,
                            counts.tokens_read,
                            counts.values_read,
                            params.num_query_heads,
                            params.gate == Gate::kSilu,
                            params.softmax_scale};
  const int32_t group = params.num_query_heads / geometry.num_kv_heads;
  const int32_t padded_group = (group + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce;
  const auto lists = static_cast<unsigned>(rows * geometry.num_kv_heads);
  const unsigned ctas = static_cast<unsigned>(context.device.num_sms()) * kCtasPerSm;
  const LaunchShape shape = {
      .grid = {lists, std::clamp((ctas + lists - 1) / std::max(lists, 1u), 1u, 64u)},
      .block = kConfirmThreads,
      .shared_bytes = static_cast<size_t>(padded_group * geometry.head_dim) * sizeof(float)};
  WithCacheType(geometry.dtype, [&](auto element) {
    Launch(context.device, "confirm reads", shape, ConfirmKernel<decltype(element)>, args);
  });
}

}  // namespace eta::cuda
