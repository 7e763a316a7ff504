// Storing keys and values, and the block index: what is kept of a full block so that a query can
// bound its scores unread (eta-semantics.md, "Block index").
//
// One kernel stores the rows and writes the records of the blocks that they fill. It takes the keys
// and values of this step from the rows themselves, so it needs no order among its thread blocks;
// sums run in an order that the geometry fixes, however a prompt was cut. A record's V total needs
// the one before: where that was written in the same step, this kernel leaves the block's own sum
// and a second one adds up along the sequence.

#include <algorithm>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace eta::cuda {
namespace {

constexpr int32_t kThreads = 128;
// Up to this many rows every thread block has one, so that blocks which fill together do not wait
// for each other; with more rows, most of them a prompt's, it has kRowsPerBlock.
constexpr int32_t kMaxSingleRows = 128;
constexpr int32_t kRowsPerBlock = 8;
constexpr int32_t kMaxChainBlocks = 128;

struct AppendArgs {
  const float* k;
  const float* v;
  int64_t k_stride;
  int64_t v_stride;
  std::byte* tiles;
  std::byte* records;
  KvTile tile;
  int32_t sub_block;
  int32_t rows_per_block;
};

__device__ __forceinline__ float* ValueTotal(const KvTile& tile, std::byte* records, int32_t block,
                                             int32_t kv_head) {
  return reinterpret_cast<float*>(records + block * tile.record_bytes() + tile.VTotal(kv_head));
}

template <typename T>
__device__ __forceinline__ void StoreRows(const AppendArgs& args, const StepView& step,
                                          int32_t begin, int32_t end, int32_t kv_head) {
  constexpr int kChunk = 16 / sizeof(T);
  const KvTile& tile = args.tile;
  const int32_t chunks = tile.head_dim / kChunk;
  const int32_t count = (end - begin) * 2 * chunks;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) {
    const int32_t chunk = i % chunks;
    const bool value = i / chunks % 2 != 0;
    const int32_t row = begin + i / (2 * chunks);
    const StepRow& at = step.rows[row];
    if (at.role == RowRole::kPadding) continue;
    const int32_t block = step.tables[at.table_begin + at.position / tile.block_size];
    const float* from = value ? args.v + row * args.v_stride : args.k + row * args.k_stride;
    std::byte* to = args.tiles + (value ? tile.V(block, kv_head) : tile.K(block, kv_head)) +
                    tile.Element(at.position % tile.block_size, chunk * kChunk);
    float elements[kChunk];
    LoadElements(from + kv_head * tile.head_dim + chunk * kChunk, elements);
    StoreElements(elements, reinterpret_cast<T*>(to));
  }
}

// Keys or values of a block as they are stored: tokens of this step from their rows, rounded;
// earlier ones from the tile.
template <typename T>
struct BlockTokens {
  const KvTile& tile;
  const std::byte* stored;
  const float* last;  // the row of the block's last token, at this KV head's columns
  int64_t stride;
  int32_t first_new;  // first token of this step

  template <int count>
  __device__ __forceinline__ void Load(int32_t token, int32_t i, float (&to)[count]) const {
    if (token < first_new) {
      LoadElements(reinterpret_cast<const T*>(stored + tile.Element(token, i)), to);
      return;
    }
    LoadElements(last - (tile.block_size - 1 - token) * stride + i, to);
#pragma unroll
    for (int j = 0; j < count; ++j) to[j] = ToFloat(FromFloat<T>(to[j]));
  }
};

// How the tokens of a block are shared out: threads stand `chunks` wide along the head dimension
// and `lanes` deep along the tokens. A part is what one deviation is taken over, a sub-block or the
// whole block; parts are split into pieces where there are fewer of them than lanes.
struct Shares {
  int32_t lanes;
  int32_t part;    // tokens
  int32_t splits;  // pieces of a part
  int32_t pieces;  // of the block

  __device__ Shares(int32_t chunks, int32_t block_size, int32_t sub_block)
      : lanes(kThreads / chunks), part(sub_block > 0 ? sub_block : block_size) {
    const int32_t parts = block_size / part;
    splits = parts < lanes ? min(part, lanes / parts) : 1;
    pieces = parts * splits;
  }
  // Tokens [Begin, End) of a piece; may be none.
  __device__ int32_t Begin(int32_t piece) const {
    return piece / splits * part + piece % splits * PieceTokens();
  }
  __device__ int32_t End(int32_t piece) const {
    return min(Begin(piece) + PieceTokens(), (piece / splits + 1) * part);
  }
  __device__ int32_t PieceTokens() const { return (part + splits - 1) / splits; }
  __device__ int32_t used_lanes() const { return min(lanes, pieces); }
};

template <typename T>
struct alignas(16) RecordScratch {
  static constexpr int kChunk = 16 / sizeof(T);
  float keys[kThreads * kChunk];    // [lanes][d]
  float values[kThreads * kChunk];  // [lanes][d]
  float mean[kMaxHeadDim];
  int32_t max_norm;  // bits of the largest squared norm: as ints they have the floats' order
};

// The record of the block that row `row` fills; its V total is the block's own sum where the block
// before fills in this step too.
template <typename T>
__device__ __forceinline__ void WriteRecord(const AppendArgs& args, const StepView& step,
                                            int32_t row, int32_t kv_head) {
  constexpr int kChunk = RecordScratch<T>::kChunk;
  extern __shared__ float norm_shares[];  // [b][chunks]
  __shared__ RecordScratch<T> scratch;
  const KvTile& tile = args.tile;
  const int32_t d = tile.head_dim;
  const int32_t b = tile.block_size;
  const int32_t chunks = d / kChunk;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t i = thread % chunks * kChunk;  // first coordinate of this thread
  const int32_t lane = thread / chunks;
  const Shares shares(chunks, b, args.sub_block);
  const int32_t pieces = lane < shares.lanes ? shares.pieces : 0;

  const StepRow& at = step.rows[row];
  const StepSequence& sequence = step.sequences[at.sequence];
  const int32_t* table = step.tables + at.table_begin;
  const int32_t ordinal = at.position / b;
  const int32_t block = table[ordinal];
  const int32_t first_new = max(0, b - 1 - (at.position - sequence.position));
  const int32_t column = kv_head * d;
  const BlockTokens<T> keys{tile, args.tiles + tile.K(block, kv_head),
                            args.k + row * args.k_stride + column, args.k_stride, first_new};
  const BlockTokens<T> values{tile, args.tiles + tile.V(block, kv_head),
                              args.v + row * args.v_stride + column, args.v_stride, first_new};
  std::byte* record = args.records + block * tile.record_bytes();

  float key_sums[kChunk] = {};
  float value_sums[kChunk] = {};
  for (int32_t piece = lane; piece < pieces; piece += shares.lanes) {
    const int32_t end = shares.End(piece);
    for (int32_t token = shares.Begin(piece); token < end; ++token) {
      float key[kChunk];
      float value[kChunk];
      keys.Load(token, i, key);
      values.Load(token, i, value);
      float norm = 0.0f;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        key_sums[j] += key[j];
        value_sums[j] += value[j];
        norm += key[j] * key[j];
      }
      norm_shares[token * chunks + i / kChunk] = norm;
    }
  }
  if (lane < shares.lanes) {
    StoreElements(key_sums, scratch.keys + lane * d + i);
    StoreElements(value_sums, scratch.values + lane * d + i);
  }
  if (thread == 0) scratch.max_norm = 0;
  __syncthreads();

  const bool first_here = at.position - b < sequence.position;
  const float* before = ordinal > 0 && first_here
                            ? ValueTotal(tile, args.records, table[ordinal - 1], kv_head)
                            : nullptr;
  auto* mu = reinterpret_cast<__half*>(record + tile.Mu(kv_head));
  float* total = ValueTotal(tile, args.records, block, kv_head);
  for (int32_t c = thread; c < d; c += kThreads) {
    float key_sum = 0.0f;
    float value_sum = 0.0f;
    for (int32_t l = 0; l < shares.used_lanes(); ++l) {
      key_sum += scratch.keys[l * d + c];
      value_sum += scratch.values[l * d + c];
    }
    const float mean = key_sum / static_cast<float>(b);
    scratch.mean[c] = mean;
    mu[c] = __float2half_rn(mean);
    total[c] = before != nullptr ? before[c] + value_sum : value_sum;
  }
  for (int32_t token = thread; token < b; token += kThreads) {
    float norm = 0.0f;
    for (int32_t c = 0; c < chunks; ++c) norm += norm_shares[token * chunks + c];
    atomicMax(&scratch.max_norm, __float_as_int(norm));
  }
  __syncthreads();

  float largest[kChunk] = {};
  for (int32_t piece = lane; piece < pieces; piece += shares.lanes) {
    const int32_t end = shares.End(piece);
    float squares[kChunk] = {};
    for (int32_t token = shares.Begin(piece); token < end; ++token) {
      float key[kChunk];
      keys.Load(token, i, key);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        const float distance = key[j] - scratch.mean[i + j];
        squares[j] += distance * distance;
      }
    }
#pragma unroll
    for (int j = 0; j < kChunk; ++j) largest[j] = fmaxf(largest[j], squares[j]);
  }
  if (lane < shares.lanes) StoreElements(largest, scratch.keys + lane * d + i);
  __syncthreads();

  auto* sigma = reinterpret_cast<__half*>(record + tile.Sigma(kv_head));
  for (int32_t c = thread; c < d; c += kThreads) {
    float most = 0.0f;
    for (int32_t l = 0; l < shares.used_lanes(); l += shares.splits) {
      float squares = 0.0f;
      for (int32_t s = 0; s < shares.splits; ++s) squares += scratch.keys[(l + s) * d + c];
      most = fmaxf(most, squares);
    }
    sigma[c] = __float2half_rn(sqrtf(most / static_cast<float>(shares.part)));
  }
  if (thread == 0) {
    *reinterpret_cast<float*>(record + tile.MaxNorm(kv_head)) =
        sqrtf(__int_as_float(scratch.max_norm));
  }
  __syncthreads();  // the next record uses the same scratch
}

template <typename T>
__global__ void __launch_bounds__(kThreads) AppendRows(AppendArgs args, StepView step) {
  WaitForPrevious();
  AllowNext();
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  const auto begin = static_cast<int32_t>(blockIdx.x) * args.rows_per_block;
  const int32_t end = min(begin + args.rows_per_block, step.num_rows);
  StoreRows<T>(args, step, begin, end, kv_head);
  for (int32_t row = begin; row < end; ++row) {
    const StepRow& at = step.rows[row];
    if (at.role == RowRole::kPadding || (at.position + 1) % args.tile.block_size != 0) continue;
    WriteRecord<T>(args, step, row, kv_head);
  }
}

// Adds up the V sums of the blocks that one sequence filled in this step, from the second on: one
// thread per coordinate, so that totals come about in the order of the blocks.
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

template <typename T>
void LaunchAppend(Context& context, const AppendKvParams& params) {
  const KvTile tile(params.geometry);
  const int32_t num_rows = context.step.num_rows;
  const int32_t rows_per_block = num_rows <= kMaxSingleRows ? 1 : kRowsPerBlock;
  const AppendArgs args = {.k = params.k.data,
                           .v = params.v.data,
                           .k_stride = params.k.stride,
                           .v_stride = params.v.stride,
                           .tiles = params.kv.tiles,
                           .records = params.kv.records,
                           .tile = tile,
                           .sub_block = params.geometry.sub_block,
                           .rows_per_block = rows_per_block};
  const int32_t chunks = tile.head_dim / tile.chunk_elements;
  const auto blocks = static_cast<unsigned>((num_rows + rows_per_block - 1) / rows_per_block);
  const auto kv_heads = static_cast<unsigned>(tile.num_kv_heads);
  Launch(context.device, "AppendKv",
         {.grid = {blocks, kv_heads},
          .block = kThreads,
          .shared_bytes = static_cast<size_t>(tile.block_size * chunks) * sizeof(float)},
         AppendRows<T>, args, context.step);
  if (num_rows <= tile.block_size) return;  // no sequence can fill two blocks
  const auto chain_blocks = static_cast<unsigned>(std::min(num_rows, kMaxChainBlocks));
  const auto threads = static_cast<unsigned>((tile.head_dim + 31) / 32 * 32);
  Launch(context.device, "AppendKv", {.grid = {chain_blocks, kv_heads}, .block = threads},
         ChainValueTotals, tile, params.kv.records, context.step);
}

}  // namespace

void AppendKv(Context& context, const AppendKvParams& params) {
  WithElementType(params.geometry.dtype,
                  [&](auto element) { LaunchAppend<decltype(element)>(context, params); });
}

}  // namespace eta::cuda
