// UniteLists writes, for each list of a launch of bundles, the union of what its rows' selections
// list: ordinals, pool blocks and, as bits, the columns (row, head of the group) that attend. A
// block that is full for the last row may be the tail of one before it, which every head attends
// to.

#include <algorithm>

#include "kernels/cuda/decode/decode_bundles.h"
#include "kernels/cuda/decode/decode_cta.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace eta::cuda {
namespace decode {
namespace {

constexpr int32_t kUniteThreads = 256;
constexpr int32_t kUniteWarps = kUniteThreads / 32;
constexpr int32_t kEach = 8;                             // blocks of a lane
constexpr int32_t kUniteBlocks = kUniteThreads * kEach;  // blocks at a time

// A CTA has one list. `args` has the rows' selections.
__global__ void __launch_bounds__(kUniteThreads)
    UniteKernel(const __grid_constant__ DecodeArgs args,
                const __grid_constant__ UnitedLists united) {
  __shared__ uint32_t columns[kUniteBlocks];
  __shared__ int32_t found[kUniteWarps];
  WaitForPrevious();
  AllowNext();
  const ListRows rows = RowsOf<true>(args, static_cast<int32_t>(blockIdx.x));
  if (rows.count == 0) return;
  const StepRow& last = args.step.rows[rows.last()];
  const int64_t list = SelectionList(args, rows);
  const int32_t num_keys = last.position + 1;
  const int32_t num_full = num_keys >> args.block_shift;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (last.attention.admit_all) {
    if (thread == 0) united.selection.counts[list] = num_full;
    return;
  }
  const int32_t group = args.num_query_heads / args.tile.num_kv_heads;
  const uint32_t all = (1u << group) - 1;
  const int32_t* table = args.step.tables + last.table_begin;
  const int64_t capacity = args.selection.capacity;
  const int32_t lane = thread % 32;
  const int32_t warp = thread / 32;
  int32_t count = 0;
  for (int32_t begin = 0; begin < num_full; begin += kUniteBlocks) {
    for (int32_t i = thread; i < kUniteBlocks; i += kUniteThreads) columns[i] = 0;
    __syncthreads();
    for (int32_t r = 0; r < rows.count; ++r) {
      const int64_t of_row =
          static_cast<int64_t>(rows.first + r) * args.tile.num_kv_heads + rows.kv_head;
      const uint32_t* blocks = args.selection.blocks + of_row * capacity;
      const uint32_t* heads = args.selection.heads + of_row * capacity;
      const int32_t listed = args.selection.counts[of_row];
      for (int32_t n = thread; n < listed; n += kUniteThreads) {
        const int32_t at = static_cast<int32_t>(blocks[n]) - begin;
        if (at < 0 || at >= kUniteBlocks) continue;
        atomicOr(&columns[at], (heads[n] & all) << (r * group));
      }
      const int32_t keys = num_keys - (rows.count - 1 - r);
      const int32_t tail = keys >> args.block_shift;
      const bool has_tail = (keys & ((1 << args.block_shift) - 1)) != 0;
      if (thread == 0 && has_tail && tail < num_full && tail >= begin &&
          tail < begin + kUniteBlocks) {
        atomicOr(&columns[tail - begin], all << (r * group));
      }
    }
    __syncthreads();

    // Each warp has consecutive blocks.
    uint32_t own[kEach];
    uint32_t attended[kEach];
    int32_t of_warp = 0;
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      own[i] = columns[(warp * kEach + i) * 32 + lane];
      attended[i] = __ballot_sync(~0u, own[i] != 0);
      of_warp += __popc(attended[i]);
    }
    if (lane == 0) found[warp] = of_warp;
    __syncthreads();
    int32_t at = count;
    for (int32_t w = 0; w < kUniteWarps; ++w) {
      if (w < warp) at += found[w];
      count += found[w];
    }
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      if (own[i] != 0) {
        const int32_t ordinal = begin + (warp * kEach + i) * 32 + lane;
        const int64_t to = list * capacity + at + __popc(attended[i] & ((1u << lane) - 1));
        united.selection.blocks[to] = static_cast<uint32_t>(ordinal);
        united.selection.heads[to] = own[i];
        united.pool_blocks[to] = static_cast<uint32_t>(table[ordinal]);
      }
      at += __popc(attended[i]);
    }
    __syncthreads();  // the next blocks use the same memory
  }
  if (thread == 0) united.selection.counts[list] = count;
}

}  // namespace
}  // namespace decode

decode::UnitedLists UniteLists(Context& context, const AttentionParams& params,
                               const DecodeLists& lists, const decode::BundleCut& cut) {
  const int32_t num_kv_heads = params.geometry.num_kv_heads;
  const int64_t rows = std::min<int64_t>(context.step.num_rows, params.selection.rows);
  const int64_t capacity = params.selection.capacity;
  const auto places = static_cast<size_t>(rows * num_kv_heads * capacity);
  auto* memory = reinterpret_cast<uint32_t*>(context.scratch.Get(
      Scratch::Use::kUnitedLists, UnitedListBytes(rows, num_kv_heads, capacity)));
  if (memory == nullptr) return {};
  decode::UnitedLists united;
  united.pool_blocks = memory;
  united.selection = params.selection;
  united.selection.blocks = memory + places;
  united.selection.heads = memory + 2 * places;
  united.selection.counts = reinterpret_cast<int32_t*>(memory + 3 * places);
  const int32_t num_lists = lists.num_bundles * num_kv_heads * cut.lists_per_bundle;
  decode::DecodeArgs args =
      decode::MakeDecodeArgs(context, params, {}, 0, num_lists, /*num_stages=*/0);
  decode::TakeBundles(lists, cut, {}, 0, args);
  Launch(context.device, "unite lists",
         {.grid = dim3(static_cast<unsigned>(num_lists)), .block = dim3(decode::kUniteThreads)},
         decode::UniteKernel, args, united);
  return united;
}

}  // namespace eta::cuda
