// DecodeAttention and PrefillAttention for any geometry and type (eta-semantics.md, "Gate",
// "Special keys" and "Selection", steps 6 and 7), from q [R, HQ * d] to out [R, HQ * d]. Exact and
// slow. plain_tile.cuh has the arithmetic.

#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/plain/plain_tile.cuh"
#include "kernels/cuda/prefill/admitted_tiles.h"

namespace eta::cuda {
namespace plain {
namespace {

__device__ __forceinline__ void StoreOutput(const TensorView& out, int64_t element, float value) {
  VisitElementType(out.dtype, [&](auto typed) {
    using T = decltype(typed);
    reinterpret_cast<T*>(out.data)[element] = FromFloat<T>(value);
  });
}

__device__ __forceinline__ void StoreQuotient(const TensorView& out, int64_t element, float4 sum,
                                              float total) {
  const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // A row without any key gets zeros.
    StoreOutput(out, element + i, total == 0.0f ? 0.0f : sums[i] / total);
  }
}

// The heads that did not admit every full block. A head that admitted every block must go without
// the floor: its sum of e^S~ - e^0 would cancel against the floor that is added at the end.
__device__ uint32_t PruningHeads(const uint32_t* heads, int32_t count, int32_t num_full) {
  if (count < num_full) return ~0u;
  __shared__ uint32_t of_warp[kWarps];
  uint32_t admitted = ~0u;
  for (int32_t i = threadIdx.x; i < count; i += kThreads) admitted &= heads[i];
  admitted = __reduce_and_sync(~0u, admitted);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = admitted;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) admitted &= of_warp[warp];
  return ~admitted;
}

__device__ __forceinline__ uint32_t LowBits(int32_t count) {
  return count >= 32 ? ~0u : (1u << count) - 1;
}

// Adds the weight of a head's sink to a query's sum of weights.
__device__ __forceinline__ void AddSink(const AttentionParams& params, int32_t head, float maximum,
                                        float& total) {
  if (params.sinks != nullptr) total += expf(params.sinks[head] - maximum);
}

// Adds to four coordinates of a query what all keys of its row's full blocks weigh at the logit 0.
__device__ __forceinline__ void AddFloor(const Tile& tile, const StepRow& row, int32_t num_full,
                                         int32_t kv_head, float maximum, int32_t coordinate,
                                         float& total, float4& sum) {
  const float weight = expf(-maximum);
  total += weight * static_cast<float>(num_full * tile.kv.block_size);
  const int32_t last = tile.args.step.tables[row.table_begin + num_full - 1];
  const std::byte* records = tile.args.params.kv.records;
  const float* v_total = ValueTotal(tile.kv, records, last, kv_head);
  sum = MultiplyAdd(*reinterpret_cast<const float4*>(v_total + coordinate), weight, sum);
}

// Attends for one decode row and KV head. The queries are the heads of the group; the keys are
// those of the listed blocks and of the tail.
__global__ void __launch_bounds__(kThreads, 2)
    DecodeKernel(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(16) float shared[];
  WaitForPrevious();
  const AttentionParams& params = args.params;
  const auto row_index = static_cast<int32_t>(blockIdx.x);
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  const int32_t thread = threadIdx.x;
  const StepRow row = args.step.rows[row_index];
  if (row.role == RowRole::kPrefill) return;
  const int32_t group = params.num_query_heads / params.geometry.num_kv_heads;
  const int32_t head_dim = params.geometry.head_dim;
  const int64_t first_column = static_cast<int64_t>(kv_head) * group * head_dim;
  const int64_t out_row = row_index * params.out.stride + first_column;
  if (row.role == RowRole::kPadding) {
    for (int32_t i = thread; i < group * head_dim; i += kThreads) {
      StoreOutput(params.out, out_row + i, 0.0f);
    }
    return;
  }

  const Tile tile(args, group, shared);
  const float* q = params.q.data + row_index * params.q.stride + first_column;
  for (int32_t i = thread; i < tile.shape.padded_queries() * head_dim; i += kThreads) {
    tile.queries[i] = i < group * head_dim ? q[i] : 0.0f;
  }
  if (thread < group && params.window == 0) {
    tile.thresholds[thread] =
        params.thresholds.data[row_index * params.thresholds.stride + kv_head * group + thread] -
        row.attention.offset;
  }

  const int32_t block_size = params.geometry.block_size;
  const int32_t num_full = (row.position + 1) / block_size;
  const int32_t tail = (row.position + 1) % block_size;
  const int64_t list = static_cast<int64_t>(row_index) * params.geometry.num_kv_heads + kv_head;
  const uint32_t* blocks = params.selection.blocks + list * params.selection.capacity;
  const uint32_t* heads = params.selection.heads + list * params.selection.capacity;
  const int32_t window_begin = WindowBegin(row.position, params.window);
  const int32_t first_block = window_begin / block_size;
  const bool admit_all = row.attention.admit_all || params.window > 0;
  const int32_t listed = admit_all ? num_full - first_block : params.selection.counts[list];
  const bool has_floor = row.attention.uniform_floor && params.gate == Gate::kSilu && !admit_all;
  const uint32_t all_heads = LowBits(group);
  const uint32_t floor_heads = has_floor ? PruningHeads(heads, listed, num_full) & all_heads : 0;

  Sums sums;
  Attend(
      tile, listed * block_size + tail, floor_heads,
      [&](int32_t i) {
        const int32_t entry = i / block_size;
        const int32_t token = i % block_size;
        const bool full = entry < listed;
        const int32_t ordinal =
            !full ? num_full
                  : (admit_all ? first_block + entry : static_cast<int32_t>(blocks[entry]));
        const bool seen = ordinal * block_size + token >= window_begin;
        const int32_t physical = args.step.tables[row.table_begin + ordinal];
        return KeySlot{
            static_cast<int64_t>(tile.kv.K(physical, kv_head)),
            token,
            full && !admit_all ? heads[entry] : (seen ? all_heads : 0),
            ordinal * block_size + token == row.position ? all_heads : 0,
            // Tokens of the tail get no floor: the total added below is that of full blocks only.
            full ? floor_heads : 0,
            IsTempered(args.step, row.tempered, ordinal * block_size + token),
        };
      },
      sums);

  Finish(tile, sums, [&](int32_t head, int32_t coordinate, float4 sum) {
    float total = tile.totals[head];
    if ((floor_heads >> head & 1) != 0) {
      AddFloor(tile, row, num_full, kv_head, tile.maxima[head], coordinate, total, sum);
    }
    AddSink(params, kv_head * group + head, tile.maxima[head], total);
    StoreQuotient(params.out, out_row + head * head_dim + coordinate, sum, total);
  });
}

// Rows begin .. end - 1 of a sequence; query 0 is of row `first`.
struct QueryRows {
  int32_t first;
  int32_t begin;
  int32_t end;
};

// The queries of rows of sparse prefill that do not attend to every full block.
__device__ __forceinline__ uint32_t PruningQueries(const AttentionArgs& args, const QueryRows& rows,
                                                   int32_t kv_head) {
  const int32_t heads = args.params.num_query_heads;
  const int32_t group = heads / args.params.geometry.num_kv_heads;
  const int32_t query = threadIdx.x % 32;
  const int32_t row = rows.first + query / group;
  const bool prunes =
      row >= rows.begin && row < rows.end &&
      args.prunes[static_cast<int64_t>(row) * heads + kv_head * group + query % group] != 0;
  return __ballot_sync(~0u, prunes);
}

// Takes from a key of block `ordinal` the queries of rows of sparse prefill that pruned it, and
// notes those whose floor has it.
__device__ __forceinline__ void Prune(const AttentionArgs& args, const QueryRows& rows,
                                      int32_t kv_head, int32_t ordinal, uint32_t floor_queries,
                                      KeySlot& slot) {
  const AttentionParams& params = args.params;
  const int32_t group = params.num_query_heads / params.geometry.num_kv_heads;
  for (uint32_t left = slot.attended; left != 0; left &= left - 1) {
    const int32_t query = __ffs(static_cast<int32_t>(left)) - 1;
    const int32_t row = rows.first + query / group;
    const int32_t num_full = (args.step.rows[row].position + 1) / params.geometry.block_size;
    if (ordinal >= num_full) continue;  // the tail
    const int64_t mask =
        static_cast<int64_t>(row) * params.num_query_heads + kv_head * group + query % group;
    const uint64_t word = params.prefill.admitted[mask * params.prefill.words + ordinal / 64];
    if ((word >> (ordinal % 64) & 1) == 0) slot.attended &= ~(1u << query);
    slot.floored |= floor_queries & 1u << query;
  }
}

// Attends for a few neighbouring rows and one KV head. Query i * group + g is head g of the tile's
// row i. Rows of one sequence attend together.
__global__ void __launch_bounds__(kThreads, 2)
    PrefillKernel(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(16) float shared[];
  WaitForPrevious();
  const AttentionParams& params = args.params;
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  const int32_t thread = threadIdx.x;
  const int32_t group = params.num_query_heads / params.geometry.num_kv_heads;
  const int32_t head_dim = params.geometry.head_dim;
  const int32_t block_size = params.geometry.block_size;
  const int32_t tile_rows = kMaxQueries / group;
  const int32_t first_row = static_cast<int32_t>(blockIdx.x) * tile_rows;
  const int32_t last_row = min(first_row + tile_rows, args.step.num_rows);
  const int64_t first_column = static_cast<int64_t>(kv_head) * group * head_dim;
  const Tile tile(args, tile_rows * group, shared);

  int32_t end = first_row;
  for (int32_t begin = first_row; begin < last_row; begin = end) {
    const StepRow row = args.step.rows[begin];
    end = begin + 1;
    if (row.role != RowRole::kPrefill) continue;
    while (end < last_row && args.step.rows[end].role == RowRole::kPrefill &&
           args.step.rows[end].sequence == row.sequence) {
      ++end;
    }

    __syncthreads();  // all threads have read the last rows' memory
    for (int32_t i = thread; i < tile.shape.padded_queries() * head_dim; i += kThreads) {
      const int32_t query = i / head_dim;
      const int32_t row_index = first_row + query / group;
      const bool valid = row_index >= begin && row_index < end;
      tile.queries[i] = valid ? params.q.data[row_index * params.q.stride + first_column +
                                              query % group * head_dim + i % head_dim]
                              : 0.0f;
    }
    if (thread < tile.shape.num_queries) {
      const int32_t row_index = first_row + thread / group;
      const bool valid = params.window == 0 && row_index >= begin && row_index < end;
      tile.thresholds[thread] = valid
                                    ? params.thresholds.data[row_index * params.thresholds.stride +
                                                             kv_head * group + thread % group] -
                                          row.attention.offset
                                    : 0.0f;
    }

    const uint32_t past_queries = LowBits((end - first_row) * group);
    const bool sparse = params.window == 0 && args.step.sequences[row.sequence].sparse != 0;
    const int32_t window_begin = WindowBegin(row.position, params.window);
    const uint32_t floor_queries =
        sparse && row.attention.uniform_floor && params.gate == Gate::kSilu
            ? PruningQueries(args, {first_row, begin, end}, kv_head)
            : 0;
    Sums sums;
    Attend(
        tile, row.position + (end - begin) - window_begin, floor_queries,
        [&](int32_t i) {
          const int32_t position = window_begin + i;
          const int32_t token = position % block_size;
          const int32_t ordinal = position / block_size;
          const int32_t physical = args.step.tables[row.table_begin + ordinal];
          // The first of the rows that may see the key, and whether it is the key's own row.
          const int32_t seen_from = max(position - row.position, 0) + begin - first_row;
          const uint32_t before = LowBits(seen_from * group);
          const bool is_own = position >= row.position;
          // The rows from this one on have windows that begin behind the key.
          const int64_t unseen_from = params.window > 0 ? int64_t{position} + params.window -
                                                              row.position + begin - first_row
                                                        : tile_rows;
          const uint32_t unseen =
              unseen_from < tile_rows ? ~LowBits(static_cast<int32_t>(unseen_from) * group) : 0;
          KeySlot slot = {
              static_cast<int64_t>(tile.kv.K(physical, kv_head)),
              token,
              past_queries & ~before & ~unseen,
              is_own ? LowBits((seen_from + 1) * group) & ~before : 0,
              0,
              IsTempered(args.step, row.tempered, position),
          };
          if (sparse) Prune(args, {first_row, begin, end}, kv_head, ordinal, floor_queries, slot);
          return slot;
        },
        sums);
    Finish(tile, sums, [&](int32_t query, int32_t coordinate, float4 sum) {
      const int32_t row_index = first_row + query / group;
      if (row_index < begin || row_index >= end) return;
      const int64_t column = first_column + query % group * head_dim + coordinate;
      float total = tile.totals[query];
      if ((floor_queries >> query & 1) != 0) {
        const int32_t num_full = (args.step.rows[row_index].position + 1) / block_size;
        AddFloor(tile, row, num_full, kv_head, tile.maxima[query], coordinate, total, sum);
      }
      AddSink(params, kv_head * group + query % group, tile.maxima[query], total);
      StoreQuotient(params.out, row_index * params.out.stride + column, sum, total);
    });
  }
}

// The largest tile of keys that fits.
TileShape ChooseShape(const Device& device, int32_t num_queries, int32_t head_dim) {
  TileShape shape{num_queries, head_dim, head_dim <= 128 ? kMaxKeys : kMaxKeys / 2};
  while (shape.max_keys > kMinKeys && shape.bytes() > device.shared_memory_per_block()) {
    shape.max_keys /= 2;
  }
  return shape;
}

void LaunchAttention(Context& context, const AttentionParams& params, const char* what,
                     int32_t num_tiles, int32_t num_queries, void (*kernel)(AttentionArgs),
                     const uint8_t* prunes = nullptr) {
  const TileShape shape = ChooseShape(context.device, num_queries, params.geometry.head_dim);
  const dim3 grid(static_cast<unsigned>(num_tiles),
                  static_cast<unsigned>(params.geometry.num_kv_heads));
  AttentionArgs args = {context.step, params, shape.max_keys, prunes};
  if (params.window > 0) args.params.gate = Gate::kNone;
  Launch(context.device, what, LaunchShape{grid, dim3(kThreads), shape.bytes()}, kernel, args);
}

}  // namespace
}  // namespace plain

void PlainDecodeAttention(Context& context, const AttentionParams& params) {
  const int32_t group = params.num_query_heads / params.geometry.num_kv_heads;
  plain::LaunchAttention(context, params, "PlainDecodeAttention", context.step.num_rows, group,
                         plain::DecodeKernel);
}

void PlainPrefillAttention(Context& context, const AttentionParams& params) {
  const int32_t group = params.num_query_heads / params.geometry.num_kv_heads;
  const int32_t tile_rows = plain::kMaxQueries / group;
  const uint8_t* prunes = nullptr;
  const auto is_sparse = [](const StepSequence& s) { return s.sparse != 0; };
  if (params.window == 0 && std::ranges::any_of(context.sequences, is_sparse)) {
    prunes = AdmittedTilesOf(context, params.geometry, params.num_query_heads).prunes;
    if (prunes == nullptr) return;
  }
  plain::LaunchAttention(context, params, "PlainPrefillAttention",
                         (context.step.num_rows + tile_rows - 1) / tile_rows, tile_rows * group,
                         plain::PrefillKernel, prunes);
}

}  // namespace eta::cuda
