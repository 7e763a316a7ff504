// CollectCalibration adds every causal score of the calibrating prefill rows to cells
// [HQ, CalibrationCells::size()]: a histogram of scores, the sum of gates, and the z that each
// above-threshold key needs (the paper's Algorithm 1; eta-semantics.md, "Profile" and "Per-head z";
// kernels/calibration_cells.h).

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/block_bound.h"
#include "kernels/reference/ops.h"

namespace eta::reference {
namespace {

// The scores of one query head against the row's keys, in order of position.
std::vector<double> Scores(const CalibrationParams& params, const KvPages& pages, const Row& row,
                           int32_t query_head) {
  const float* q =
      params.q.row(row.index) + static_cast<int64_t>(query_head) * params.geometry.head_dim;
  const int32_t kv_head = query_head / (params.num_query_heads / params.geometry.num_kv_heads);
  std::vector<double> scores;
  for (int32_t t = 0; t < row.num_keys(); ++t) {
    scores.push_back(Score(pages, q, pages.Slot(row.sequence, t), kv_head, params.softmax_scale));
  }
  return scores;
}

void CountScores(const std::vector<double>& scores, const ScoreBins& bins, uint64_t* cells) {
  const CalibrationCells at(bins);
  const uint64_t weight = CalibrationWeight(static_cast<int64_t>(scores.size()));
  for (const double score : scores) {
    if (!std::isfinite(score)) {
      ++cells[at.not_finite()];
    } else if (score < bins.low) {
      ++cells[at.below()];
      cells[at.below_weight()] += weight;
    } else if (score >= bins.high) {
      ++cells[at.above()];
      cells[at.above_weight()] += weight;
    } else {
      const auto bin = static_cast<int32_t>((score - bins.low) / bins.width());
      cells[at.weight(std::min(bin, bins.count - 1))] += weight;
    }
  }
}

// Adds the row mean of m = sigma(beta * (S - tau_eff)), the row's own key included.
void AddGate(const std::vector<double>& scores, double threshold, double beta, uint64_t& cell) {
  double sum = 0.0;
  for (const double score : scores) sum += 1.0 / (1.0 + std::exp(-beta * (score - threshold)));
  if (std::isnan(sum)) return;
  cell += static_cast<uint64_t>(
      std::llrint(kCalibrationUnit * sum / static_cast<double>(scores.size())));
}

// Counts every key at or above the threshold in the cell of what admits its block.
void CountNeeded(const CalibrationParams& params, const KvPages& pages, const Row& row,
                 int32_t query_head, float threshold, const std::vector<double>& scores,
                 uint64_t* cells) {
  const CalibrationCells at(params.bins);
  const int32_t b = params.geometry.block_size;
  const int32_t d = params.geometry.head_dim;
  const int32_t kv_head = query_head / (params.num_query_heads / params.geometry.num_kv_heads);
  const std::span<const float> q(params.q.row(row.index) + int64_t{query_head} * d,
                                 static_cast<size_t>(d));
  const int32_t n = row.num_full_blocks(b);
  for (int32_t j = 0; j * b < row.num_keys(); ++j) {
    const auto begin = scores.begin() + j * b;
    const auto end = scores.begin() + std::min((j + 1) * b, row.num_keys());
    const auto keys = static_cast<uint64_t>(
        std::count_if(begin, end, [&](double score) { return score >= threshold; }));
    if (keys == 0) continue;
    if (j == n || IsAlwaysRead(row.sequence.attention, j, n)) {  // the tail comes last
      cells[at.unconditional()] += keys;
      continue;
    }
    const Record record = pages.RecordOf(pages.Block(row.sequence, j), kv_head);
    const BlockBound bound = BoundOf(record.View(params.geometry), q, params.softmax_scale);
    cells[at.needed(NeededZBin(bound, threshold))] += keys;
  }
}

}  // namespace

void CollectCalibration(const BatchView& batch, const CalibrationParams& params) {
  const KvPages pages(params.geometry, params.kv);
  const CalibrationCells at(params.bins);
  ForEachRow(batch, RowKind::kPrefill, [&](const Row& row) {
    if (!row.sequence.calibrate) return;
    for (int32_t h = 0; h < params.num_query_heads; ++h) {
      uint64_t* cells = params.cells + h * at.size();
      const std::vector<double> scores = Scores(params, pages, row, h);
      const float threshold = params.thresholds.row(row.index)[h] - row.sequence.attention.offset;
      CountScores(scores, params.bins, cells);
      if (params.gate == Gate::kSilu) AddGate(scores, threshold, params.beta, cells[at.gate()]);
      CountNeeded(params, pages, row, h, threshold, scores, cells);
    }
  });
}

}  // namespace eta::reference
