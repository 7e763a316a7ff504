// What the parts of SelectBlocks share: the work of one decode row and KV head, and the tasks that
// it is cut into. block_select.cc has the order of the parts.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/batch.h"
#include "kernels/cpu/kv_tile.h"
#include "kernels/kv_geometry.h"
#include "kernels/params/selection.h"

namespace eta::cpu {

// Blocks that one task screens: a constant, so that the order of sums depends on the row alone.
inline constexpr int32_t kScreenBlocks = 512;

// A head's best block within one task's range, among the ordinals before rescue_end.
struct BestBlock {
  float bound = -std::numeric_limits<float>::infinity();
  int32_t ordinal = -1;
};

// The result of a task, beside what it writes per block.
struct ScreenResult {
  // Absolute thresholds:
  uint32_t admitted_early = 0;  // heads that admitted one of the first rescue_chunk blocks
  std::array<BestBlock, kMaxGroup> best;
  // Relative thresholds: the log-sum-exp of the task's part of Lhat, per head.
  std::array<float, kMaxGroup> mass;
};

// The blocks of a row of `num_keys` keys.
struct RowBlocks {
  RowBlocks() = default;
  RowBlocks(const AttentionOptions& options, int32_t keys, int32_t block_size)
      : num_keys(keys),
        full_blocks(keys / block_size),
        first_free(std::clamp(options.sink_blocks, 0, full_blocks)),
        first_pinned(
            std::max(first_free, full_blocks - std::clamp(options.pinned_blocks, 0, full_blocks))) {
    // A block that is always read leaves no head empty.
    const int32_t chunk = std::clamp(options.rescue_chunk, 0, full_blocks);
    rescue_end = first_free > 0 || first_pinned < chunk ? 0 : chunk;
  }

  int32_t num_keys = 0;     // T
  int32_t full_blocks = 0;  // N
  // Of the ordinals [first_free, first_pinned) a head chooses; the others are read in any case.
  int32_t first_free = 0;
  int32_t first_pinned = 0;
  // An empty head's rescue looks at the ordinals before this one; 0: no head can be empty.
  int32_t rescue_end = 0;
};

// One row and KV head. Screening fills `heads`, the mask of every full block, at its ordinal. Of a
// decode row compaction then turns blocks and heads into the list.
struct SelectGroup : RowBlocks {
  const SequenceRows* sequence;
  int32_t row;
  int32_t kv_head;
  bool relative;     // thresholds are relative to the row's mass
  uint32_t* blocks;  // [N]
  uint32_t* heads;   // [N]
  float* masses;     // relative: l_j [G][mass_stride]
  size_t mass_stride;
  int32_t* rescued;  // [G], -1 where a head rescued none; null: nobody asks
  int32_t first_task;
  int32_t num_tasks;

  bool reads_all() const { return first_free == first_pinned || sequence->attention.admit_all; }
  // The end of a range of blocks, and the part of it of which heads choose.
  int32_t End(int32_t begin) const {
    return begin + kScreenBlocks < full_blocks ? begin + kScreenBlocks : full_blocks;
  }
  int32_t FreeBegin(int32_t begin) const { return begin > first_free ? begin : first_free; }
  int32_t FreeEnd(int32_t end) const { return end < first_pinned ? end : first_pinned; }
};

// What bounds and masses need of a query beside its sums over a record's vectors.
struct QueryTerms {
  float norm;    // |q|
  float size;    // |q|_1 / 2
  float centre;  // <q, k_0>
  float z;
};

// One thread's working memory.
struct SelectScratch {
  alignas(64) float queries[kMaxGroup * kMaxHeadDim];
  alignas(64) float squares[kMaxGroup * kMaxHeadDim];
  alignas(64) float products[3 * 4 * 16 * 16];    // [sum of a head][record][lane]
  alignas(64) float best_bounds[kMaxGroup * 16];  // [head][lane]
  alignas(64) int32_t best_ordinals[kMaxGroup * 16];
  QueryTerms terms[kMaxGroup];
  // Relative thresholds: running sums of exponentials, lane by lane: sum * e^base.
  alignas(64) float mass_bases[kMaxGroup * 16];
  alignas(64) float mass_sums[kMaxGroup * 16];
  alignas(64) float scaled[kMaxGroup * kTileRowStride];  // queries times s
  alignas(64) float scores[kMaxGroup * kTileRowStride];
};

// Whether the rows of a sequence have thresholds that are relative to their mass.
inline bool IsRelative(const SequenceRows& sequence, const KvGeometry& geometry) {
  return sequence.attention.relative && geometry.index == IndexKind::kOutlier;
}

// Makes a head admit the block that it rescues.
inline void AdmitRescued(const SelectGroup& group, size_t head, int32_t ordinal) {
  group.heads[ordinal] |= uint32_t{1} << head;
  if (group.rescued != nullptr) group.rescued[head] = ordinal;
}

inline uint32_t AllHeads(size_t count) {
  return count == 32 ? ~uint32_t{0} : (uint32_t{1} << count) - 1;
}

// screen.cc, absolute thresholds: writes the masks of the full blocks of range `range`.
void ScreenRange(const SelectBlocksParams& params, const SelectGroup& group, int32_t range,
                 SelectScratch& scratch, ScreenResult& result);

// estimated_mass.cc, relative thresholds: writes l_j of the blocks of range `range`, and its part
// of Lhat.
void EstimateRange(const SelectBlocksParams& params, const SelectGroup& group, int32_t range,
                   SelectScratch& scratch, ScreenResult& result);
// Writes Lhat + c of every head into the row's thresholds, from the results of all ranges, and the
// masks of all full blocks, rescued ones included.
void AdmitByMass(const SelectBlocksParams& params, const SelectGroup& group,
                 std::span<const ScreenResult> results);

// Makes each head that admitted none of the first `rescue_chunk` blocks admit the best of them,
// from what ScreenRange found in all ranges (block_select.cc).
void Rescue(const SelectGroup& group, std::span<const ScreenResult> results, size_t num_heads);

// compact_list.cc: turns the masks per ordinal into an ascending list. Returns the list's length;
// `attended` [num_heads] gets the number of blocks of each head.
int32_t CompactList(const SelectGroup& group, size_t num_heads, int32_t* attended);

}  // namespace eta::cpu
