// ConfirmReads decides, once the keys of a listed block are scored, which heads keep the block:
// those whose true scores reach the threshold that its record promised to reach (eta-semantics.md,
// "Confirmed reads"). V of a block that no head keeps is not read.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/ops.h"

namespace eta::reference {
namespace {

// What is compared with the threshold: the largest score of the block's keys, or with relative
// thresholds the log-sum-exp of them.
double TrueBound(const AttentionParams& params, const Row& row, int32_t query_head,
                 int32_t ordinal) {
  const KvPages pages(params.geometry, params.kv);
  const int32_t b = params.geometry.block_size;
  const int32_t kv_head = query_head / (params.num_query_heads / params.geometry.num_kv_heads);
  const float* q = params.q.row(row.index) + int64_t{query_head} * params.geometry.head_dim;
  std::vector<double> scores;
  double max = -HUGE_VAL;
  for (int32_t t = ordinal * b; t < (ordinal + 1) * b; ++t) {
    if (params.gate == Gate::kSilu && t != row.position && Tempered(row.sequence, t)) continue;
    scores.push_back(Score(pages, q, pages.Slot(row.sequence, t), kv_head, params.softmax_scale));
    max = std::max(max, scores.back());
  }
  if (!row.sequence.attention.relative) return max;
  double sum = 0.0;
  for (const double score : scores) sum += std::exp(score - max);
  return max + std::log(sum);
}

}  // namespace

void ConfirmReads(const AttentionParams& params, const Row& row) {
  const AttentionOptions& options = row.sequence.attention;
  const int32_t b = params.geometry.block_size;
  const int32_t n = row.num_full_blocks(b);
  const int32_t kv_heads = params.geometry.num_kv_heads;
  const int32_t group = params.num_query_heads / kv_heads;
  const float* thresholds = params.thresholds.row(row.index);
  const int32_t* rescued = params.selection.rescued + int64_t{row.index} * params.num_query_heads;
  for (int32_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
    const int64_t list = int64_t{row.index} * kv_heads + kv_head;
    const uint32_t* blocks = params.selection.blocks + list * params.selection.capacity;
    uint32_t* heads = params.selection.heads + list * params.selection.capacity;
    const int32_t count = params.selection.counts[list];

    std::vector<bool> attends_to_all;
    for (int32_t g = 0; g < group; ++g) {
      const auto listed =
          std::count_if(heads, heads + count, [&](uint32_t mask) { return (mask >> g & 1) != 0; });
      attends_to_all.push_back(listed == n);
    }
    int32_t values_read = row.num_keys() - n * b;
    for (int32_t i = 0; i < count; ++i) {
      const auto ordinal = static_cast<int32_t>(blocks[i]);
      uint32_t kept = 0;
      for (int32_t g = 0; g < group; ++g) {
        if ((heads[i] >> g & 1) == 0) continue;
        const int32_t h = kv_head * group + g;
        const float threshold = thresholds[h] - options.offset;
        const bool keeps = IsAlwaysRead(options, ordinal, n) || rescued[h] == ordinal ||
                           attends_to_all[static_cast<size_t>(g)] ||
                           TrueBound(params, row, h, ordinal) >= threshold;
        if (keeps) kept |= uint32_t{1} << g;
      }
      if (!options.shared_reads || kept == 0) heads[i] = kept;
      if (kept != 0) values_read += b;
    }
    params.values_read[list] = values_read;
  }
}

}  // namespace eta::reference
