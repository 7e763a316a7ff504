#include "calibration/evaluation/rivals/block_scores.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace eta {
namespace {

double LogSumExp(std::span<const float> logits) {
  const float max = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum);
}

}  // namespace

std::vector<float> BlockScores(std::span<const float> keys, std::span<const float> q,
                               float softmax_scale) {
  const size_t d = q.size();
  std::vector<float> scores(keys.size() / d);
  for (size_t t = 0; t < scores.size(); ++t) {
    const float* key = keys.data() + t * d;
    // Eight sums, which compilers may keep side by side.
    float sums[8] = {};
    size_t i = 0;
    for (; i + 8 <= d; i += 8) {
      for (size_t lane = 0; lane < 8; ++lane) sums[lane] += q[i + lane] * key[i + lane];
    }
    for (; i < d; ++i) sums[0] += q[i] * key[i];
    float sum = 0.0f;
    for (const float part : sums) sum += part;
    scores[t] = softmax_scale * sum;
  }
  return scores;
}

double LogMass(std::span<const float> keys, std::span<const float> q, float softmax_scale) {
  return LogSumExp(BlockScores(keys, q, softmax_scale));
}

double GatedLogMass(std::span<const float> keys, std::span<const float> q, float softmax_scale,
                    const ScoreGate& gate, bool own) {
  std::vector<float> logits = BlockScores(keys, q, softmax_scale);
  if (gate.silu) {
    const size_t gated = logits.size() - (own ? 1 : 0);
    for (float& logit : std::span(logits).first(gated)) {
      logit /= 1.0f + std::exp(-gate.beta * (logit - gate.threshold));
    }
  }
  return LogSumExp(logits);
}

}  // namespace eta
