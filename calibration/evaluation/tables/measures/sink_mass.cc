#include "calibration/evaluation/tables/measures/sink_mass.h"

#include <numeric>

namespace eta {
namespace {

double FirstMass(const std::vector<double>& logits) {
  const std::vector<double> weights = Softmax(logits);
  return std::accumulate(weights.begin(), weights.begin() + kSinkTokens, 0.0);
}

}  // namespace

std::vector<double> SinkMassSums(const RecordedWindow& window, const RecordedLayer& layer) {
  std::vector<double> sums(kSinkSums);
  for (const RecordedRow& row : layer.rows) {
    if (row.position < kSinkTokens) continue;
    for (int32_t h = 0; h < window.num_query_heads; ++h) {
      const std::vector<double> scores = RowScores(window, layer, row, h);
      const float threshold = row.thresholds[static_cast<size_t>(h)];
      sums[kSinkRaw] += FirstMass(scores);
      sums[kSinkGated] += FirstMass(GatedLogits(window, scores, threshold));
      sums[kSinkUniform] += static_cast<double>(kSinkTokens) / row.num_keys();
      sums[kSinkTerms] += 1.0;
    }
  }
  return sums;
}

}  // namespace eta
