// EstimateMass is what rows with relative thresholds compare (eta-semantics.md, "Relative
// thresholds"): from q [d] and the records, for every full block an estimate of the log-sum-exp of
// its scores, and for the row a lower estimate of the log-sum-exp of all of them. All is in
// float32, since the contract compares in this precision.

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/block_bound.h"
#include "kernels/reference/ops.h"

namespace eta::reference {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();  // log of 0

}  // namespace

EstimatedMass EstimateMass(const KvPages& pages, const Row& row, int32_t kv_head, const float* q,
                           float softmax_scale, const float* sink) {
  const KvGeometry& geometry = pages.geometry();
  const int32_t b = geometry.block_size;
  const int32_t n = row.num_full_blocks(b);
  const int32_t others = b - 1;  // keys of a block beside its outlier
  const auto add_key = [&](float sum, int32_t position) {
    const double score =
        Score(pages, q, pages.Slot(row.sequence, position), kv_head, softmax_scale);
    return LogAdd(sum, static_cast<float>(score));
  };
  EstimatedMass mass;
  float row_mass = sink != nullptr ? *sink : kEmpty;
  for (int32_t j = 0; j < n; ++j) {
    const Record record = pages.RecordOf(pages.Block(row.sequence, j), kv_head);
    const RecordScores scores =
        ScoresOf(record.View(geometry), {q, static_cast<size_t>(geometry.head_dim)}, softmax_scale);
    mass.blocks.push_back(BlockMass<float>(scores, others));
    if (IsAlwaysRead(row.sequence.attention, j, n)) {
      for (int32_t t = j * b; t < (j + 1) * b; ++t) row_mass = add_key(row_mass, t);
    } else {
      const float gaussian =
          others > 0 ? std::log(static_cast<float>(others)) + scores.mean : kEmpty;
      row_mass = LogAdd(row_mass, LogAdd(gaussian, scores.outlier));
    }
  }
  for (int32_t t = n * b; t < row.num_keys(); ++t) row_mass = add_key(row_mass, t);
  mass.row = row_mass;
  return mass;
}

}  // namespace eta::reference
