// CountRecall counts, per query head, the keys of the decode rows with S >= tau_eff (above [HQ]),
// and those of them that stand in admitted blocks or the tail (above_admitted [HQ]). Their quotient
// is the recall of the selection (eta-semantics.md, "What is counted").

#include <vector>

#include "kernels/reference/ops.h"

namespace eta::reference {

void CountRecall(const BatchView& batch, const RecallParams& params) {
  const AttentionParams& attention = params.attention;
  const KvPages pages(attention.geometry, attention.kv);
  const int32_t group = attention.num_query_heads / attention.geometry.num_kv_heads;
  ForEachRow(batch, RowKind::kDecode, [&](const Row& row) {
    for (int32_t h = 0; h < attention.num_query_heads; ++h) {
      const float* q =
          attention.q.row(row.index) + static_cast<int64_t>(h) * attention.geometry.head_dim;
      const double threshold = static_cast<double>(attention.thresholds.row(row.index)[h]) -
                               row.sequence.attention.offset;
      const auto above = [&](int32_t t) {
        return Score(pages, q, pages.Slot(row.sequence, t), h / group, attention.softmax_scale) >=
               threshold;
      };
      for (int32_t t = 0; t < row.num_keys(); ++t) params.above[h] += above(t) ? 1 : 0;
      for (const int32_t t : AdmittedPositions(attention, row, h)) {
        params.above_admitted[h] += above(t) ? 1 : 0;
      }
    }
  });
}

}  // namespace eta::reference
