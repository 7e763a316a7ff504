// DecodeAttention computes attention of each decode row over the blocks that SelectBlocks listed,
// and the tail: gate, softmax, and the floor of the pruned keys, from q [R, HQ * d] to out
// [R, HQ * d] (eta-semantics.md, "Gate", "Special keys" and "Selection", steps 6 and 7). Rows with
// confirmed reads first strike from the list what its keys do not bear out (confirm.cc). In a layer
// with a window a row attends to the keys of its window ("Windows").

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/reference/ops.h"

namespace eta::reference {
namespace {

// Coordinate i of the sum of V over all of the row's keys. The last full block's record holds the
// sum up to its end; the tail is added.
double TotalValue(const KvPages& pages, const Row& row, int32_t kv_head, int32_t i) {
  const int32_t b = pages.geometry().block_size;
  const int32_t n = row.num_full_blocks(b);
  double total = 0.0;
  if (n > 0) total = pages.RecordOf(pages.Block(row.sequence, n - 1), kv_head).v_total[i];
  for (int32_t t = n * b; t < row.num_keys(); ++t) {
    total += pages.Value(pages.Slot(row.sequence, t), kv_head, i);
  }
  return total;
}

}  // namespace

bool Tempered(const SequenceRows& sequence, int32_t position) {
  const auto word = static_cast<size_t>(position / 64);
  return word < sequence.tempered.size() && (sequence.tempered[word] >> (position % 64) & 1) != 0;
}

double Score(const KvPages& pages, const float* query, int64_t slot, int32_t kv_head,
             float softmax_scale) {
  double dot = 0.0;
  for (int32_t i = 0; i < pages.geometry().head_dim; ++i) {
    dot += static_cast<double>(query[i]) * pages.Key(slot, kv_head, i);
  }
  return softmax_scale * dot;
}

// The gate draws a score below the threshold towards 0; a tempered key is there. The row's own key
// is not gated.
double GatedLogit(const AttentionParams& params, const Row& row, double score, double threshold,
                  int32_t position) {
  if (params.gate == Gate::kNone || params.window > 0 || position == row.position) return score;
  if (Tempered(row.sequence, position)) return 0.0;
  return score / (1.0 + std::exp(-params.beta * (score - threshold)));
}

void Attend(const AttentionParams& params, const Row& row, int32_t query_head,
            std::span<const int32_t> positions, bool floor, float* out) {
  const KvPages pages(params.geometry, params.kv);
  const int32_t d = params.geometry.head_dim;
  const int32_t group = params.num_query_heads / params.geometry.num_kv_heads;
  const int32_t kv_head = query_head / group;
  const float* q = params.q.row(row.index) + static_cast<int64_t>(query_head) * d;
  double threshold = 0.0;
  if (params.window == 0) {
    threshold = static_cast<double>(params.thresholds.row(row.index)[query_head]) -
                row.sequence.attention.offset;
  }
  const auto num_pruned =
      static_cast<int64_t>(row.num_keys()) - static_cast<int64_t>(positions.size());

  std::vector<double> weights;
  for (const int32_t t : positions) {
    const double score =
        Score(pages, q, pages.Slot(row.sequence, t), kv_head, params.softmax_scale);
    weights.push_back(GatedLogit(params, row, score, threshold, t));
  }
  // A pruned key's logit is 0 and takes part in the maximum.
  const double pruned_logit = floor && num_pruned > 0 ? 0.0 : -HUGE_VAL;
  double max = pruned_logit;
  for (const double logit : weights) max = std::max(max, logit);
  if (params.sinks != nullptr) max = std::max(max, double{params.sinks[query_head]});
  double denominator = 0.0;
  for (double& weight : weights) {
    weight = std::exp(weight - max);
    denominator += weight;
  }
  const double pruned_weight = pruned_logit == 0.0 ? std::exp(-max) : 0.0;
  denominator += pruned_weight * static_cast<double>(num_pruned);
  if (params.sinks != nullptr) denominator += std::exp(params.sinks[query_head] - max);

  for (int32_t i = 0; i < d; ++i) {
    double sum = 0.0;
    double admitted = 0.0;
    for (size_t n = 0; n < positions.size(); ++n) {
      const double v = pages.Value(pages.Slot(row.sequence, positions[n]), kv_head, i);
      sum += weights[n] * v;
      admitted += v;
    }
    if (pruned_weight > 0.0) sum += pruned_weight * (TotalValue(pages, row, kv_head, i) - admitted);
    out[i] = denominator > 0.0 ? static_cast<float>(sum / denominator) : 0.0f;
  }
}

std::vector<int32_t> WindowPositions(const Row& row, int32_t window) {
  std::vector<int32_t> positions(static_cast<size_t>(std::min(row.num_keys(), window)));
  std::iota(positions.begin(), positions.end(), WindowBegin(row.position, window));
  return positions;
}

std::vector<int32_t> AdmittedPositions(const AttentionParams& params, const Row& row,
                                       int32_t query_head) {
  const int32_t b = params.geometry.block_size;
  const int32_t group = params.num_query_heads / params.geometry.num_kv_heads;
  const uint32_t head_bit = uint32_t{1} << (query_head % group);
  const int64_t list =
      static_cast<int64_t>(row.index) * params.geometry.num_kv_heads + query_head / group;
  const uint32_t* blocks = params.selection.blocks + list * params.selection.capacity;
  const uint32_t* heads = params.selection.heads + list * params.selection.capacity;

  std::vector<int32_t> positions;
  for (int32_t n = 0; n < params.selection.counts[list]; ++n) {
    if ((heads[n] & head_bit) == 0) continue;  // the block was read for another head of the group
    const int32_t begin = static_cast<int32_t>(blocks[n]) * b;
    for (int32_t t = begin; t < begin + b; ++t) positions.push_back(t);
  }
  for (int32_t t = row.num_full_blocks(b) * b; t < row.num_keys(); ++t) positions.push_back(t);
  return positions;
}

void DecodeAttention(const BatchView& batch, const AttentionParams& params) {
  ForEachRow(batch, RowKind::kDecode, [&](const Row& row) {
    const AttentionOptions& options = row.sequence.attention;
    const bool windowed = params.window > 0;
    if (!windowed && options.confirm && !options.admit_all) ConfirmReads(params, row);
    const bool floor = !windowed && options.uniform_floor && params.gate == Gate::kSilu;
    for (int32_t h = 0; h < params.num_query_heads; ++h) {
      Attend(params, row, h,
             windowed ? WindowPositions(row, params.window) : AdmittedPositions(params, row, h),
             floor, params.out.row(row.index) + int64_t{h} * params.geometry.head_dim);
    }
  });
}

}  // namespace eta::reference
