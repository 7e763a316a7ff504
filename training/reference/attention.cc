// Gated attention, one row at a time: training/attention_params.h is its definition.

#include <algorithm>
#include <cmath>
#include <limits>

#include "training/reference/elements.h"
#include "training/reference/gated_scores.h"
#include "training/reference/ops.h"

namespace eta::training::reference {
namespace {

// Whether query `t` of a head of `kv_head` attends to key `s` <= t.
bool Reads(const AttentionForwardParams& params, int32_t b, int32_t kv_head, int32_t t, int32_t s) {
  const KeySelection& keys = params.keys;
  if (keys.window != 0 && s <= t - keys.window) return false;
  if (keys.blocks == nullptr) return true;
  const int64_t n = KeySelection::Blocks(params.shape.length);
  const uint64_t queries =
      keys.blocks[((int64_t{b} * params.shape.num_kv_heads + kv_head) * n + s / kRegulariserBlock) *
                      n +
                  t / kRegulariserBlock];
  return (queries >> t % kRegulariserBlock & 1) != 0;
}

}  // namespace

GatedScores ScoreRow(const AttentionForwardParams& params, int32_t b, int32_t h, int32_t t) {
  const AttentionShape& shape = params.shape;
  const AttentionGate& gate = params.gate;
  const int64_t row = int64_t{b} * shape.length + t;
  const int64_t q_begin = int64_t{h} * shape.head_dim;
  const int64_t k_begin = int64_t{h / shape.group()} * shape.head_dim;
  const bool gated = gate.kind != GateKind::kNone;
  const double tau = gated ? params.tau[row * shape.num_query_heads + h] : 0.0;
  GatedScores scores;
  for (int32_t s = 0; s <= t; ++s) {
    double dot = 0.0;
    for (int32_t i = 0; i < shape.head_dim; ++i) {
      dot += Get(params.q, row, q_begin + i) *
             Get(params.k, int64_t{b} * shape.length + s, k_begin + i);
    }
    const double score = shape.scale * dot;
    const double m = gated ? 1.0 / (1.0 + std::exp(-gate.beta * (score - tau))) : 0.0;
    double logit = score;
    if (s != t && gate.kind == GateKind::kSilu) {
      logit = score * (1.0 - gate.strength + gate.strength * m);
    } else if (s != t && gate.kind == GateKind::kAdditive) {
      logit = score + gate.strength * kAdditivePenalty * (m - 1.0);
    }
    if (!Reads(params, b, h / shape.group(), t, s)) {
      logit = -std::numeric_limits<double>::infinity();
    }
    scores.score.push_back(score);
    scores.gate.push_back(m);
    scores.logit.push_back(logit);
  }
  return scores;
}

LargestGate LargestOfBlock(const std::vector<GatedScores>& rows, int32_t block) {
  LargestGate largest = {-1.0, 0, 0};
  for (int32_t head = 0; head < static_cast<int32_t>(rows.size()); ++head) {
    for (int32_t i = 0; i < kRegulariserBlock; ++i) {
      const int32_t key = block * kRegulariserBlock + i;
      const double gate = rows[static_cast<size_t>(head)].gate[static_cast<size_t>(key)];
      if (gate > largest.gate) largest = {gate, head, key};
    }
  }
  return largest;
}

namespace {

void Attend(const AttentionForwardParams& params, int32_t b, int32_t h, int32_t t,
            const GatedScores& scores) {
  const AttentionShape& shape = params.shape;
  const int64_t row = int64_t{b} * shape.length + t;
  const int64_t v_begin = int64_t{h / shape.group()} * shape.head_dim;
  const double largest = *std::max_element(scores.logit.begin(), scores.logit.end());
  double total = 0.0;
  for (const double logit : scores.logit) total += std::exp(logit - largest);
  for (int32_t i = 0; i < shape.head_dim; ++i) {
    double sum = 0.0;
    for (int32_t s = 0; s <= t; ++s) {
      sum += std::exp(scores.logit[static_cast<size_t>(s)] - largest) *
             Get(params.v, int64_t{b} * shape.length + s, v_begin + i);
    }
    Set(params.out, row, int64_t{h} * shape.head_dim + i, sum / total);
  }
  const int64_t at = (int64_t{b} * shape.num_query_heads + h) * shape.length + t;
  params.lse[at] = static_cast<float>(largest + std::log(total));
  if (params.gate_sum == nullptr) return;
  double gates = 0.0;
  for (const double gate : scores.gate) gates += gate;
  params.gate_sum[at] = static_cast<float>(gates);
}

// Of the heads in `rows`, which are row `at` of block_sum.
void SumBlocks(const AttentionForwardParams& params, const std::vector<GatedScores>& rows,
               int32_t t, int64_t at) {
  if (params.block_sum == nullptr) return;
  double sum = 0.0;
  for (int32_t block = 0; block < (t + 1) / kRegulariserBlock; ++block) {
    sum += LargestOfBlock(rows, block).gate;
  }
  params.block_sum[at] = static_cast<float>(sum);
}

}  // namespace

void Attention(const AttentionForwardParams& params) {
  const AttentionShape& shape = params.shape;
  // The heads that share a row of block_sum.
  const int32_t together = params.gate.group_blocks ? shape.group() : 1;
  const int32_t block_heads = params.gate.block_heads(shape);
  for (int32_t b = 0; b < shape.sequences; ++b) {
    for (int32_t t = 0; t < shape.length; ++t) {
      for (int32_t first = 0; first < shape.num_query_heads; first += together) {
        std::vector<GatedScores> rows;
        for (int32_t h = first; h < first + together; ++h) {
          rows.push_back(ScoreRow(params, b, h, t));
          Attend(params, b, h, t, rows.back());
        }
        SumBlocks(params, rows, t,
                  (int64_t{b} * block_heads + first / together) * shape.length + t);
      }
    }
  }
}

}  // namespace eta::training::reference
