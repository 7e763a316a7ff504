// The plan of a decode step: which blocks the lists (row, KV head) read, cut into stages of 64
// tokens, and the equal share of all stages that each CTA takes. Nothing of it is known to the
// host.
#pragma once

#include <algorithm>

#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/step_view.h"
#include "kernels/params.h"

namespace eta::cuda::decode {

// One CTA: four warps that compute and one that copies. A stage is 64 tokens of one list: a block,
// half of a block of 128, or 2 or 4 smaller blocks; each computing warp takes 16 of its tokens.
inline constexpr int kComputeWarps = 4;
inline constexpr int kComputeThreads = 32 * kComputeWarps;
inline constexpr int kThreads = kComputeThreads + 32;
inline constexpr int kStageTokens = 64;
inline constexpr int kMaxEntries = 4;  // blocks in a stage
inline constexpr int kMaxStages = 8;
// Lists (row, KV head) that one launch plans in shared memory; more rows take more launches.
inline constexpr int kMaxLists = 1024;
inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kNoScore =
    -1e30f;  // below any logit, and finite: exp2 of differences stays defined

struct DecodeArgs {
  StepView step;
  int32_t first_row;
  int32_t num_lists;  // of this launch
  const float* q;
  int64_t q_stride;
  const float* thresholds;
  int64_t thresholds_stride;
  const std::byte* tiles;
  const std::byte* records;
  BlockSelection selection;
  const int32_t* tokens_attended;  // [R, HQ]
  std::byte* out;
  int64_t out_stride;
  DType out_dtype;
  float* partials;  // [unit, 2, heads, d + 2]: see Partial
  int32_t* begin;   // [num_lists + 1]: the plan, for the merge
  int32_t* taken;   // small units that CTAs asked for; zero between launches
  int32_t num_query_heads;
  int32_t num_stages;  // of the ring in shared memory
  bool gated;
  float scale;
  float beta;
  KvTile tile;
};

// Whether a head's pruned keys keep the weight exp(0). Where it pruned nothing, the floor's terms
// cancel in exact arithmetic but not in float32, so they are left out.
__device__ __forceinline__ bool HasFloor(const DecodeArgs& args, const StepRow& row,
                                         int32_t row_index, int32_t query_head) {
  return args.gated && row.uniform_floor != 0 && row.admit_all == 0 &&
         args.tokens_attended[static_cast<int64_t>(row_index) * args.num_query_heads +
                              query_head] <= row.position;
}

// How many stages a list of `num_blocks` full blocks and a partial tail of `tail` tokens takes. Its
// entries are the admitted full blocks, then the tail.
__device__ __forceinline__ int32_t StagesOf(int32_t num_blocks, int32_t tail, int32_t block_size) {
  if (block_size >= kStageTokens) {
    return num_blocks * (block_size / kStageTokens) + (tail + kStageTokens - 1) / kStageTokens;
  }
  const int32_t entries = kStageTokens / block_size;
  return (num_blocks + (tail > 0 ? 1 : 0) + entries - 1) / entries;
}

// The plan, in shared memory. Every CTA makes it for itself, which costs less than another kernel.
struct Plan {
  int32_t* begin;       // [num_lists + 1]: stages of all lists before this one
  int32_t* num_blocks;  // [num_lists]: admitted full blocks
  int32_t num_lists;

  static size_t Bytes(int32_t num_lists) {
    return (2 * static_cast<size_t>(num_lists) + 1) * sizeof(int32_t);
  }
  __device__ Plan(int32_t* memory, int32_t lists)
      : begin(memory), num_blocks(memory + lists + 1), num_lists(lists) {}

  // All threads of the CTA call it; it waits for the kernel before, which wrote the counts. The
  // step's rows were there before the step's first kernel.
  __device__ void Make(const DecodeArgs& args) {
    __shared__ int32_t warp_sums[kThreads / 32];
    constexpr int kPerThread = (kMaxLists + kThreads - 1) / kThreads;
    const int thread = threadIdx.x;
    const int lane = thread % 32;
    const int64_t first_list = static_cast<int64_t>(args.first_row) * args.tile.num_kv_heads;
    const int32_t per_thread = (num_lists + kThreads - 1) / kThreads;
    int32_t tails[kPerThread];  // -1: not a decode row
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int32_t list = thread * per_thread + i;
      tails[i] = -1;
      if (i >= per_thread || list >= num_lists) continue;
      const StepRow& row = args.step.rows[args.first_row + list / args.tile.num_kv_heads];
      if (row.role == RowRole::kDecode) tails[i] = (row.position + 1) % args.tile.block_size;
    }
    WaitForPrevious();
    AllowNext();
    int32_t stages[kPerThread];
    int32_t own = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int32_t list = thread * per_thread + i;
      stages[i] = 0;
      if (i >= per_thread || list >= num_lists) continue;
      const int32_t blocks = args.selection.counts[first_list + list];
      num_blocks[list] = blocks;
      if (tails[i] >= 0) stages[i] = StagesOf(blocks, tails[i], args.tile.block_size);
      own += stages[i];
    }
    int32_t sum = own;
    for (int step = 1; step < 32; step *= 2) {
      const int32_t other = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) warp_sums[thread / 32] = sum;
    __syncthreads();
    int32_t before = sum - own;
    for (int warp = 0; warp < thread / 32; ++warp) before += warp_sums[warp];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int32_t list = thread * per_thread + i;
      if (i >= per_thread || list >= num_lists) continue;
      begin[list] = before;
      before += stages[i];
    }
    if (thread == kThreads - 1) begin[num_lists] = before;
    __syncthreads();
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

// How the stages are dealt out: in units, each a range of consecutive stages. The first num_shares
// units are most of the work in equal parts, one for every CTA; the rest are small, and whichever
// CTA is free takes the next one. (Equal parts alone leave the memory idle at the end:
// multiprocessors of one chip get up to 15 % more or less of its bandwidth.) Who computes a unit
// changes nothing in its result, and partial results merge in the order of units.
struct Units {
  static constexpr int32_t kPiecesPerCta = 5;  // small units that a CTA takes on average
  static constexpr int32_t kMinPiece = 4;      // stages
  static constexpr int32_t kMinShare = 4;      // fewer stages cost more to merge than they save

  int32_t total;       // stages
  int32_t in_shares;   // of them in the equal parts
  int32_t num_shares;  // equal parts: share stages each, the first few one more
  int32_t share;
  int32_t longer;      // how many have one more
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

  // A unit's first stage; of the unit past the last one, the end.
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
  // Most units that a launch of `ctas` can have.
  static int64_t Most(int64_t ctas) { return ctas * (kPiecesPerCta + 1) + 1; }
};

}  // namespace eta::cuda::decode
