#include "calibration/evaluation/tables/measures/recorded_attention.h"

#include <algorithm>
#include <cmath>

#include "calibration/evaluation/perplexity/alignment.h"

namespace eta {

std::vector<double> RowScores(const RecordedWindow& window, const RecordedLayer& layer,
                              const RecordedRow& row, int32_t head) {
  const auto d = static_cast<size_t>(window.head_dim);
  const std::span<const float> q = window.query(row, head);
  const float* key = layer.keys[static_cast<size_t>(head / window.group_size())].data();
  std::vector<double> scores(static_cast<size_t>(row.num_keys()));
  for (double& score : scores) {
    double even = 0.0;  // two sums, since the additions of one wait for each other
    double odd = 0.0;
    for (size_t i = 0; i + 1 < d; i += 2) {
      even += static_cast<double>(q[i]) * key[i];
      odd += static_cast<double>(q[i + 1]) * key[i + 1];
    }
    score = window.softmax_scale * (even + odd);
    key += d;
  }
  return scores;
}

std::vector<double> GatedLogits(const RecordedWindow& window, std::span<const double> scores,
                                float threshold) {
  std::vector<double> logits(scores.begin(), scores.end());
  if (window.gate == Gate::kNone) return logits;
  for (size_t s = 0; s + 1 < logits.size(); ++s) {
    if (s < window.tempered.size() && window.tempered[s] != 0) {
      logits[s] = 0.0;
      continue;
    }
    logits[s] /= 1.0 + std::exp(-window.beta * (logits[s] - threshold));
  }
  return logits;
}

std::vector<double> Softmax(std::span<const double> logits) {
  std::vector<double> weights(logits.begin(), logits.end());
  if (weights.empty()) return weights;
  const double max = *std::ranges::max_element(weights);
  double sum = 0.0;
  for (double& weight : weights) {
    weight = std::exp(weight - max);
    sum += weight;
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

void SetRelativeThresholds(RecordedWindow& window, float c) {
  for (RecordedLayer& layer : window.layers) {
    for (RecordedRow& row : layer.rows) {
      row.thresholds.resize(static_cast<size_t>(window.num_query_heads));
      for (int32_t h = 0; h < window.num_query_heads; ++h) {
        row.thresholds[static_cast<size_t>(h)] =
            static_cast<float>(LogSumExp(RowScores(window, layer, row, h)) + c);
      }
    }
  }
}

}  // namespace eta
