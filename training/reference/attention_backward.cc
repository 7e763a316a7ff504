// Gradients of gated attention (the paper's "Derivation of the Attention Gradients"), with the gate
// strength g. Per query and key, with P the softmax:
//   dS~ = P (dP - sum_k P_k dP_k), dP = <grad_out, v>
//   kSilu      dS~/dS = 1 - g + g m    dS~/dm = g S
//   kAdditive  dS~/dS = 1              dS~/dm = g C
//   dm = dS~ dS~/dm + grad_gate_sum (+ grad_block_sum, where this m is its block's largest)
//   dS = dS~ dS~/dS + dm beta m (1 - m)        dtau = -sum dm beta m (1 - m)
// On the diagonal S~ = S: there dm has the gradients of the row sums alone.

#include <cmath>
#include <vector>

#include "training/reference/elements.h"
#include "training/reference/gated_scores.h"
#include "training/reference/ops.h"

namespace eta::training::reference {
namespace {

double At(const RowGradient& gradient, int32_t b, int32_t h, int32_t t) {
  if (gradient.data == nullptr) return 0.0;
  return gradient.data[b * gradient.sequence_stride + h * gradient.head_stride + t];
}

// Gradients of k and v, summed over queries and heads in double.
struct KvGradients {
  std::vector<double> k;  // [B T, HKV d]
  std::vector<double> v;
};

// `grad_gate` [t + 1]: what the row sums put on each gate.
void RowBackward(const AttentionBackwardParams& params, int32_t b, int32_t h, int32_t t,
                 const GatedScores& scores, const std::vector<double>& grad_gate,
                 KvGradients& sums) {
  const AttentionForwardParams& f = params.forward;
  const AttentionShape& shape = f.shape;
  const int32_t d = shape.head_dim;
  const int64_t first = int64_t{b} * shape.length;
  const int64_t row = first + t;
  const int64_t q_begin = int64_t{h} * d;
  const int64_t k_begin = int64_t{h / shape.group()} * d;
  const int64_t kv_cols = int64_t{shape.num_kv_heads} * d;
  const auto keys = static_cast<size_t>(t) + 1;

  double largest = scores.logit[0];
  for (const double logit : scores.logit) largest = std::fmax(largest, logit);
  double total = 0.0;
  for (const double logit : scores.logit) total += std::exp(logit - largest);
  std::vector<double> weight(keys);
  std::vector<double> grad_weight(keys);
  double mean = 0.0;
  for (size_t s = 0; s < keys; ++s) {
    weight[s] = std::exp(scores.logit[s] - largest) / total;
    double dot = 0.0;
    for (int32_t i = 0; i < d; ++i) {
      const double grad = Get(params.grad_out, row, q_begin + i);
      const int64_t key = first + static_cast<int64_t>(s);
      dot += grad * Get(f.v, key, k_begin + i);
      sums.v[static_cast<size_t>(key * kv_cols + k_begin + i)] += weight[s] * grad;
    }
    grad_weight[s] = dot;
    mean += weight[s] * dot;
  }

  const double g = f.gate.strength;
  double grad_tau = 0.0;
  std::vector<double> grad_q(static_cast<size_t>(d), 0.0);
  for (size_t s = 0; s < keys; ++s) {
    const double m = scores.gate[s];
    const double grad_logit = weight[s] * (grad_weight[s] - mean);
    const bool gated = s + 1 != keys && f.gate.kind != GateKind::kNone;
    const bool silu = f.gate.kind == GateKind::kSilu;
    const double logit_by_score = gated && silu ? 1.0 - g + g * m : 1.0;
    const double logit_by_gate = !gated ? 0.0 : g * (silu ? scores.score[s] : kAdditivePenalty);
    const double through_gate =
        f.gate.kind == GateKind::kNone
            ? 0.0
            : (grad_logit * logit_by_gate + grad_gate[s]) * f.gate.beta * m * (1.0 - m);
    grad_tau -= through_gate;
    const double grad_score = shape.scale * (grad_logit * logit_by_score + through_gate);
    const int64_t key = first + static_cast<int64_t>(s);
    for (int32_t i = 0; i < d; ++i) {
      grad_q[static_cast<size_t>(i)] += grad_score * Get(f.k, key, k_begin + i);
      sums.k[static_cast<size_t>(key * kv_cols + k_begin + i)] +=
          grad_score * Get(f.q, row, q_begin + i);
    }
  }
  for (int32_t i = 0; i < d; ++i) {
    Set(params.grad_q, row, q_begin + i, grad_q[static_cast<size_t>(i)]);
  }
  if (params.grad_tau != nullptr) {
    params.grad_tau[row * shape.num_query_heads + h] = static_cast<float>(grad_tau);
  }
}

}  // namespace

void AttentionBackward(const AttentionBackwardParams& params) {
  const AttentionForwardParams& f = params.forward;
  const AttentionShape& shape = f.shape;
  const int32_t together = f.gate.group_blocks ? shape.group() : 1;
  const auto elements =
      static_cast<size_t>(shape.rows() * shape.num_kv_heads) * static_cast<size_t>(shape.head_dim);
  KvGradients sums = {std::vector<double>(elements, 0.0), std::vector<double>(elements, 0.0)};
  for (int32_t b = 0; b < shape.sequences; ++b) {
    for (int32_t t = 0; t < shape.length; ++t) {
      for (int32_t first = 0; first < shape.num_query_heads; first += together) {
        std::vector<GatedScores> rows;
        std::vector<std::vector<double>> grad_gate;
        for (int32_t h = first; h < first + together; ++h) {
          rows.push_back(ScoreRow(f, b, h, t));
          grad_gate.emplace_back(static_cast<size_t>(t) + 1, At(params.grad_gate_sum, b, h, t));
        }
        const double grad_blocks = At(params.grad_block_sum, b, first / together, t);
        for (int32_t block = 0; block < (t + 1) / kRegulariserBlock; ++block) {
          const LargestGate largest = LargestOfBlock(rows, block);
          grad_gate[static_cast<size_t>(largest.head)][static_cast<size_t>(largest.key)] +=
              grad_blocks;
        }
        for (int32_t i = 0; i < together; ++i) {
          RowBackward(params, b, first + i, t, rows[static_cast<size_t>(i)],
                      grad_gate[static_cast<size_t>(i)], sums);
        }
      }
    }
  }
  for (int64_t r = 0; r < params.grad_k.rows; ++r) {
    for (int64_t i = 0; i < params.grad_k.cols; ++i) {
      Set(params.grad_k, r, i, sums.k[static_cast<size_t>(r * params.grad_k.cols + i)]);
      Set(params.grad_v, r, i, sums.v[static_cast<size_t>(r * params.grad_k.cols + i)]);
    }
  }
}

}  // namespace eta::training::reference
