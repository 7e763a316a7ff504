// PrefillAttention computes attention of each prefill row from q [R, HQ * d] to out [R, HQ * d]:
// gated, over every causal key with nothing pruned (eta-semantics.md, "Gate"), or over the blocks
// that SelectPrefillBlocks left in the row's masks ("Sparse prefill"); in a layer with a window
// over the keys of the row's window ("Windows").

#include <vector>

#include "kernels/reference/ops.h"

namespace eta::reference {
namespace {

// The positions that a query head of a prefill row attends to.
std::vector<int32_t> Positions(const AttentionParams& params, const Row& row, int32_t query_head) {
  if (params.window > 0) return WindowPositions(row, params.window);
  const int32_t b = params.geometry.block_size;
  const int32_t tail_begin = row.num_full_blocks(b) * b;
  const uint64_t* mask = nullptr;
  if (IsSparsePrefill(row.sequence)) {
    const int64_t at = static_cast<int64_t>(row.index) * params.num_query_heads + query_head;
    mask = params.prefill.admitted + at * params.prefill.words;
  }
  std::vector<int32_t> positions;
  for (int32_t t = 0; t < row.num_keys(); ++t) {
    const int32_t j = t / b;
    if (mask == nullptr || t >= tail_begin || (mask[j / 64] >> (j % 64) & 1) != 0) {
      positions.push_back(t);
    }
  }
  return positions;
}

}  // namespace

void PrefillAttention(const BatchView& batch, const AttentionParams& params) {
  ForEachRow(batch, RowKind::kPrefill, [&](const Row& row) {
    const bool floor = params.window == 0 && IsSparsePrefill(row.sequence) &&
                       row.sequence.attention.uniform_floor && params.gate == Gate::kSilu;
    for (int32_t h = 0; h < params.num_query_heads; ++h) {
      Attend(params, row, h, Positions(params, row, h), floor,
             params.out.row(row.index) + int64_t{h} * params.geometry.head_dim);
    }
  });
}

}  // namespace eta::reference
