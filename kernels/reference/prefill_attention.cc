// PrefillAttention computes attention of each prefill row over every causal key: gated, nothing
// pruned, from q [R, HQ * d] to out [R, HQ * d] (eta-semantics.md, "Gate").

#include <numeric>
#include <vector>

#include "kernels/reference/ops.h"

namespace eta::reference {

void PrefillAttention(const BatchView& batch, const AttentionParams& params) {
  ForEachRow(batch, RowKind::kPrefill, [&](const Row& row) {
    std::vector<int32_t> positions(static_cast<size_t>(row.num_keys()));
    std::iota(positions.begin(), positions.end(), 0);
    for (int32_t h = 0; h < params.num_query_heads; ++h) {
      Attend(params, row, h, positions, /*floor=*/false,
             params.out.row(row.index) + int64_t{h} * params.geometry.head_dim);
    }
  });
}

}  // namespace eta::reference
