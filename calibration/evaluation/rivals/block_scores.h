// Scores of the keys of one block, and their log-sum-exp, as one query head has them.
#pragma once

#include <span>
#include <vector>

namespace eta {

// [n], of `keys` [n, d].
std::vector<float> BlockScores(std::span<const float> keys, std::span<const float> q,
                               float softmax_scale);

// log-sum-exp of the scores of `keys` [n, d].
double LogMass(std::span<const float> keys, std::span<const float> q, float softmax_scale);

// How scores become logits (eta-semantics.md, "Gate").
struct ScoreGate {
  bool silu = false;
  float beta = 1.0f;
  float threshold = 0.0f;  // tau_eff
};
// The same of gated logits. `own`: the last key is the row's own, which no gate tempers.
double GatedLogMass(std::span<const float> keys, std::span<const float> q, float softmax_scale,
                    const ScoreGate& gate, bool own);

}  // namespace eta
