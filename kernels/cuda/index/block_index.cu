// AppendKv stores K and V [R, HKV * d] of the step's rows in the cache, rounded to its type. It
// writes the record of every block that this fills: per KV head vectors [d] of its keys and the
// running sum of V [d] (eta-semantics.md, "Block index" and "Index kinds"). With the record a query
// can bound its scores against the block without reading the keys.
//
// Launches bind, not bytes. A CTA takes all rows of the step that fall into the same blocks of the
// cache. So when they fill a block, all its tokens are in the tile: this CTA or an earlier step
// stored them. A record's V total needs the one before. If both blocks fill in the same step, this
// kernel writes the block's own sum, and a second kernel adds up along the sequence.

#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/index/block_record.cuh"

namespace eta::cuda {
namespace {

// Up to this many rows every CTA has one row, so that blocks which fill together do not wait for
// each other. With more rows, most of them a prompt's, a CTA has kRowsPerBlock.
constexpr int32_t kMaxSingleRows = 128;
constexpr int32_t kRowsPerBlock = 8;
constexpr int32_t kMaxChainBlocks = 128;

// Stores K and V of rows [begin, end). A warp stores one vector at a time.
template <typename T>
__device__ __forceinline__ void StoreRows(const AppendArgs& args, const StepView& step,
                                          int32_t begin, int32_t end, int32_t kv_head) {
  constexpr int32_t kWarps = kAppendThreads / 32;
  const KvTile& tile = args.tile;
  const int32_t count = (end - begin) * 2;
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  for (int32_t first = warp; first < count; first += kHeldVectors * kWarps) {
    HeadVector vectors[kHeldVectors];
    ForHeldVectors<kWarps>(first, count, [&](int n, int32_t i) {
      const int32_t row = begin + i / 2;
      const float* from = i % 2 != 0 ? args.v + row * args.v_stride : args.k + row * args.k_stride;
      vectors[n].Load(from + kv_head * tile.head_dim, tile.head_dim);
    });
    ForHeldVectors<kWarps>(first, count, [&](int n, int32_t i) {
      const StepRow& at = step.rows[begin + i / 2];
      const int32_t block = step.tables[at.table_begin + at.position / tile.block_size];
      StoreToken<T>(vectors[n], tile, args.tiles, block, kv_head, at.position % tile.block_size,
                    i % 2 != 0);
    });
  }
}

// The first row, from `row` on, that begins a block of the cache or its sequence's rows.
__device__ __forceinline__ int32_t NextBlockBegin(const StepView& step, int32_t num_rows,
                                                  int32_t row, int32_t block_size) {
  if (row >= num_rows) return num_rows;
  const StepRow& at = step.rows[row];
  const StepSequence& sequence = step.sequences[at.sequence];
  const int32_t token = at.position % block_size;
  if (token == 0 || row == sequence.row_begin) return row;
  const int32_t rows_left = sequence.row_begin + sequence.num_rows - row;
  return row + min(block_size - token, rows_left);
}

template <typename T>
__global__ void __launch_bounds__(kAppendThreads)
    AppendRows(AppendArgs args, int32_t rows_per_block, StepView step) {
  extern __shared__ __align__(16) float keys[];
  __shared__ RecordScratch scratch;
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  const int32_t b = args.tile.block_size;
  const int32_t num_rows = min(step.counts->num_rows, step.num_rows);
  const auto first = static_cast<int32_t>(blockIdx.x) * rows_per_block;
  const int32_t begin = NextBlockBegin(step, num_rows, first, b);
  const int32_t end = NextBlockBegin(step, num_rows, first + rows_per_block, b);
  const auto fills = [&](int32_t row) {
    return args.records != nullptr && (step.rows[row].position + 1) % b == 0;
  };
  const auto work_on = [&](int32_t row) {
    const StepRow& at = step.rows[row];
    const bool chained = at.position - b < step.sequences[at.sequence].position;
    return BlockRecordWork(args, step.tables + at.table_begin, at.position / b, kv_head, chained,
                           keys, scratch);
  };
  WaitForPrevious();
  AllowNext();
  StoreRows<T>(args, step, begin, end, kv_head);
  __syncthreads();
  for (int32_t row = begin; row < end; ++row) {
    if (!fills(row)) continue;
    BlockRecordWork record = work_on(row);
    record.Prepare<T>();
    record.LoadLast<T>();
    __syncthreads();
    record.Finish();
  }
}

// Adds up the V sums of the blocks that one sequence filled in this step, from the second block on.
// One thread takes one coordinate, so totals are added in the order of the blocks.
__global__ void __launch_bounds__(kMaxHeadDim)
    ChainValueTotals(KvTile tile, std::byte* records, StepView step) {
  constexpr int kHeld = 32;  // sums in flight
  WaitForPrevious();
  AllowNext();
  const auto i = static_cast<int32_t>(threadIdx.x);
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  if (i >= tile.head_dim) return;
  const int32_t num_sequences = step.counts->num_sequences;
  for (auto s = static_cast<int32_t>(blockIdx.x); s < num_sequences;
       s += static_cast<int32_t>(gridDim.x)) {
    const StepSequence& sequence = step.sequences[s];
    const int32_t first = sequence.position / tile.block_size;
    const int32_t end = (sequence.position + sequence.num_rows) / tile.block_size;
    if (end - first < 2) continue;
    const int32_t* table = step.tables + sequence.table_begin;
    float total = ValueTotal(tile, records, table[first], kv_head)[i];
    for (int32_t begin = first + 1; begin < end; begin += kHeld) {
      float* at[kHeld];
      float sums[kHeld];
#pragma unroll
      for (int n = 0; n < kHeld; ++n) {
        const int32_t block = table[min(begin + n, end - 1)];
        at[n] = ValueTotal(tile, records, block, kv_head) + i;
      }
#pragma unroll
      for (int n = 0; n < kHeld; ++n) sums[n] = *at[n];
#pragma unroll
      for (int n = 0; n < kHeld; ++n) {
        if (begin + n >= end) break;
        total += sums[n];
        *at[n] = total;
      }
    }
  }
}

}  // namespace

size_t RecordMemory(const KvGeometry& geometry) {
  return RecordSharedBytes(KvTile(geometry)) + sizeof(RecordScratch);
}

void AppendKv(Context& context, const AppendKvParams& params) {
  const AppendArgs args = MakeAppendArgs(params);
  const KvTile& tile = args.tile;
  const int32_t num_rows = context.step.num_rows;
  const int32_t rows_per_block = num_rows <= kMaxSingleRows ? 1 : kRowsPerBlock;
  const auto blocks = static_cast<unsigned>((num_rows + rows_per_block - 1) / rows_per_block);
  const auto kv_heads = static_cast<unsigned>(tile.num_kv_heads);
  const LaunchShape shape = {
      .grid = {blocks, kv_heads}, .block = kAppendThreads, .shared_bytes = RecordSharedBytes(tile)};
  WithCacheType(params.geometry.dtype, [&](auto element) {
    Launch(context.device, "AppendKv", shape, AppendRows<decltype(element)>, args, rows_per_block,
           context.step);
  });
  // No sequence can fill two blocks, or the layer has no index.
  if (num_rows <= tile.block_size || params.kv.records == nullptr) return;
  const auto chain_blocks = static_cast<unsigned>(std::min(num_rows, kMaxChainBlocks));
  const auto threads = static_cast<unsigned>((tile.head_dim + 31) / 32 * 32);
  Launch(context.device, "AppendKv", {.grid = {chain_blocks, kv_heads}, .block = threads},
         ChainValueTotals, tile, params.kv.records, context.step);
}

}  // namespace eta::cuda
