// The plan of a decode step: which blocks the lists (row, KV head) read, cut into stages of 64
// tokens, and which stages each CTA takes. The host knows nothing of it. In a launch of bundles a
// list has several rows of a sequence, which read the same blocks up to their own tokens.
#pragma once

#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/step_view.h"
#include "kernels/params/selection.h"

namespace eta::cuda::decode {

// A CTA has four warps that compute and one that copies. A stage is 64 tokens of one list: a block,
// half of a block of 128, or 2 or 4 smaller blocks. Each computing warp takes 16 of its tokens.
inline constexpr int kComputeWarps = 4;
inline constexpr int kComputeThreads = 32 * kComputeWarps;
inline constexpr int kThreads = kComputeThreads + 32;
inline constexpr int kStageTokens = 64;
inline constexpr int kMaxEntries = 4;  // blocks in a stage
inline constexpr int kMaxStages = 12;
// The most lists (row, KV head) that one launch plans in shared memory. More rows take more
// launches.
inline constexpr int kMaxLists = 1024;
inline constexpr float kNoScore =
    -1e30f;  // below any logit, and finite so that exp2 of differences is defined

struct DecodeArgs {
  StepView step;
  int32_t first_row;
  int32_t num_lists;  // lists of this launch
  const float* q;
  int64_t q_stride;
  const float* thresholds;
  int64_t thresholds_stride;
  const float* sinks;  // [HQ] or null
  const std::byte* tiles;
  const std::byte* records;
  BlockSelection selection;
  const uint32_t* pool_blocks;  // [rows, HKV, capacity]: the pool's blocks of selection.blocks
  int32_t* tokens_attended;     // [R, HQ]
  int32_t* tokens_read;         // [R, HKV]
  int32_t* values_read;         // [R, HKV]; null: no row has confirmed reads
  std::byte* out;
  int64_t out_stride;
  DType out_dtype;
  float* partials;  // [unit, 2, heads, d + 2], see Partial
  int32_t* begin;   // [num_lists + 1]: the plan, for the merge
  int32_t* taken;   // number of small units taken; zero between launches
  int32_t num_query_heads;
  int32_t num_stages;   // stages of the ring in shared memory
  int32_t block_shift;  // log2 of the block size
  bool gated;
  // The layer's window: every decode row reads its last `window` keys, by no list. 0: no window.
  int32_t window;
  // Every decode row reads all its blocks. Nobody wrote counts, and the first CTA does.
  bool all;
  // And what the step stored is the last token of a list.
  bool early;
  float scale;
  float beta;
  KvTile tile;
  // Of a launch of bundles, whose rows read everything, or a window. The first `rows_per_list` rows
  // of a bundle are those of its first list, and so on.
  const RowBundle* bundles = nullptr;
  int32_t rows_per_list = 1;
  int32_t lists_per_bundle = 1;  // of a KV head
  int32_t num_count_lists = 0;   // pairs (row, KV head) that are counted, or cleared as padding
};

// The rows of a list, and its KV head.
struct ListRows {
  int32_t first;
  int32_t count;  // 0: an empty list of a launch of bundles
  int32_t kv_head;
  // The row whose blocks the list has: it sees all keys of the others. 0 if there is none.
  __device__ int32_t last() const { return first + max(count, 1) - 1; }
};
template <bool kBundled>
__device__ __forceinline__ ListRows RowsOf(const DecodeArgs& args, int32_t list) {
  const int32_t place = list / args.tile.num_kv_heads;
  const int32_t kv_head = list % args.tile.num_kv_heads;
  if constexpr (kBundled) {
    const RowBundle& bundle = args.bundles[place / args.lists_per_bundle];
    const int32_t skipped = place % args.lists_per_bundle * args.rows_per_list;
    const int32_t count = min(bundle.num_rows - skipped, args.rows_per_list);
    if (count <= 0) return {0, 0, kv_head};
    return {bundle.row_begin + skipped, count, kv_head};
  } else {
    return {args.first_row + place, 1, kv_head};
  }
}

// The first block of the pool's that a row, and those before it in its list, read in a layer with a
// window: what stands before it in the row's block table may be gone.
__device__ __forceinline__ int32_t FirstBlock(const DecodeArgs& args, const StepRow& row,
                                              int32_t rows_before = 0) {
  return WindowBegin(row.position - rows_before, args.window) >> args.block_shift;
}

// Whether a head's pruned keys keep the weight exp(0). For a head that pruned nothing the floor's
// terms cancel in exact arithmetic but not in float32, so they are left out.
__device__ __forceinline__ bool HasFloor(const DecodeArgs& args, const StepRow& row,
                                         int32_t row_index, int32_t query_head) {
  if (!args.gated || !row.attention.uniform_floor || row.attention.admit_all) return false;
  const int32_t num_kv_heads = args.tile.num_kv_heads;
  const int32_t group = args.num_query_heads / num_kv_heads;
  const int32_t attended =
      row.attention.shared_reads
          ? args.tokens_read[static_cast<int64_t>(row_index) * num_kv_heads + query_head / group]
          : args.tokens_attended[static_cast<int64_t>(row_index) * args.num_query_heads +
                                 query_head];
  return attended <= row.position;
}

// The number of stages of a list with `num_blocks` full blocks and a partial tail of `tail` tokens.
// The list's entries are the admitted full blocks, then the tail. Small blocks share a stage only
// as a whole.
__device__ __forceinline__ int32_t StagesOf(int32_t num_blocks, int32_t tail, int32_t block_shift) {
  const int32_t block_size = 1 << block_shift;
  const int32_t in_tail = block_size >= kStageTokens || tail == 0 ? tail : block_size;
  return ((num_blocks << block_shift) + in_tail + kStageTokens - 1) / kStageTokens;
}

// The plan, in shared memory. Every CTA makes its own, which costs less than another kernel. Its
// copying warp makes it, since that warp needs it first.
struct Plan {
  int32_t* begin;       // [num_lists + 1]: stages of all lists before this one
  int32_t* num_blocks;  // [num_lists]: admitted full blocks
  int32_t num_lists;

  static size_t Bytes(int32_t num_lists) {
    return (2 * static_cast<size_t>(num_lists) + 1) * sizeof(int32_t);
  }
  __device__ Plan(int32_t* memory, int32_t lists)
      : begin(memory), num_blocks(memory + lists + 1), num_lists(lists) {}

  // One warp calls it. The warp also waits for the previous kernel, which wrote the counts, or the
  // last token; only with `early` it does not. The step's rows were there before the step's first
  // kernel.
  template <bool kBundled = false>
  __device__ void Make(const DecodeArgs& args) {
    constexpr int kBatch = 4;  // counts that a lane reads at once
    const int lane = threadIdx.x % 32;
    const int32_t* counts =
        args.selection.counts + static_cast<int64_t>(args.first_row) * args.tile.num_kv_heads;
    const int32_t per_lane = (num_lists + 31) / 32;
    const int32_t first = min(lane * per_lane, num_lists);
    const int32_t end = min(first + per_lane, num_lists);
    // `begin` holds the lists' tails until the counts are there; -1: not a decode row.
    for (int32_t list = first; list < end; ++list) {
      const ListRows rows = RowsOf<kBundled>(args, list);
      const StepRow& row = args.step.rows[rows.last()];
      const int32_t tail = (row.position + 1) & ((1 << args.block_shift) - 1);
      const bool decodes = row.role == RowRole::kDecode && (!kBundled || rows.count > 0);
      begin[list + 1] = decodes ? tail : -1;
    }
    if (!args.early) {
      WaitForPrevious();
      AllowNext();
    }
    int32_t own = 0;
    for (int32_t list = first; list < end; list += kBatch) {
      int32_t blocks[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        blocks[i] = 0;
        if (list + i >= end) continue;
        const ListRows rows = RowsOf<kBundled>(args, list + i);
        const StepRow& row = args.step.rows[rows.last()];
        if (kBundled || args.all || args.window > 0) {
          blocks[i] = ((row.position + 1) >> args.block_shift) -
                      FirstBlock(args, row, kBundled ? max(rows.count, 1) - 1 : 0);
        } else {
          blocks[i] = counts[list + i];
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (list + i >= end) break;
        const int32_t tail = begin[list + i + 1];
        num_blocks[list + i] = blocks[i];
        if (tail >= 0) own += StagesOf(blocks[i], tail, args.block_shift);
        begin[list + i + 1] = own;
      }
    }
    int32_t sum = own;
    for (int step = 1; step < 32; step *= 2) {
      const int32_t other = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 0) begin[0] = 0;
    for (int32_t list = first; list < end; ++list) begin[list + 1] += sum - own;
    __syncwarp();
  }

  // The list that `stage` belongs to.
  __device__ int32_t ListOf(int32_t stage) const {
    int32_t low = 0;
    int32_t high = num_lists;
    while (high - low > 1) {
      const int32_t middle = (low + high) / 2;
      if (begin[middle] <= stage) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

// How the stages are dealt out to CTAs. A unit is a range of consecutive stages. The first
// num_shares units are most of the work in equal shares, one per CTA. The others are small, and a
// free CTA takes the next one: multiprocessors of one chip differ in bandwidth, so equal shares
// alone leave the memory idle at the end. A unit's result does not depend on the CTA, and partial
// results merge in the order of units.
struct Units {
  static constexpr int32_t kPiecesPerCta = 5;  // small units that a CTA takes on average
  static constexpr int32_t kMinPiece = 4;      // stages
  static constexpr int32_t kMinShare = 4;      // fewer stages cost more to merge than they save

  int32_t total;       // stages
  int32_t in_shares;   // stages in the equal shares
  int32_t num_shares;  // equal shares: `share` stages each, the first `longer` one more
  int32_t share;
  int32_t longer;      // number of shares with one stage more
  int32_t piece;       // stages of a small unit
  int32_t num_pieces;  // small units

  __device__ Units(int32_t stages, int32_t ctas) : total(stages) {
    const int32_t in_pieces = total / 16 * 3;
    if (in_pieces < ctas * kMinPiece) {
      num_shares = min(ctas, max(1, total / kMinShare));
      in_shares = total;
      piece = 1;
      num_pieces = 0;
    } else {
      num_shares = ctas;
      in_shares = total - in_pieces;
      piece = max(kMinPiece, (in_pieces + ctas * kPiecesPerCta - 1) / (ctas * kPiecesPerCta));
      num_pieces = (in_pieces + piece - 1) / piece;
    }
    share = in_shares / num_shares;
    longer = in_shares % num_shares;
  }

  // The first stage of a unit; for the index after the last unit, the end of all stages.
  __device__ int32_t Begin(int32_t unit) const {
    if (unit <= num_shares) return unit * share + min(unit, longer);
    return min(in_shares + (unit - num_shares) * piece, total);
  }
  // The unit that a stage belongs to.
  __device__ int32_t Of(int32_t stage) const {
    if (stage >= in_shares) return num_shares + (stage - in_shares) / piece;
    const int32_t in_longer = longer * (share + 1);
    return stage < in_longer ? stage / (share + 1) : longer + (stage - in_longer) / share;
  }
  // The most units that a launch of `ctas` CTAs can have.
  static int64_t Most(int64_t ctas) { return ctas * (kPiecesPerCta + 1) + 1; }
};

}  // namespace eta::cuda::decode
