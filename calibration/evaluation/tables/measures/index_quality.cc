#include "calibration/evaluation/tables/measures/index_quality.h"

#include <algorithm>
#include <numeric>

namespace eta {
namespace {

// Adds one row and head.
void Add(std::span<const double> scores, std::span<const double> weights,
         std::span<const float> bounds, float threshold, size_t block_size,
         std::vector<double>& sums) {
  const auto above = [&](std::span<const double> some) {
    return static_cast<double>(
        std::ranges::count_if(some, [&](double score) { return score >= threshold; }));
  };
  double read = 0.0;
  for (size_t j = 0; j < bounds.size(); ++j) {
    const size_t begin = j * block_size;
    const double reached = above(scores.subspan(begin, block_size));
    const bool admitted = bounds[j] >= threshold;
    const bool needed = reached > 0.0;
    sums[needed ? kNeeded : kUnneeded] += 1.0;
    sums[kAbove] += reached;
    if (admitted) {
      if (!needed) sums[kFalsePositive] += 1.0;
      sums[kAboveAdmitted] += reached;
      read += static_cast<double>(block_size);
      continue;
    }
    if (needed) sums[kFalseNegative] += 1.0;
    const std::span<const double> missed = weights.subspan(begin, block_size);
    sums[kMissedMass] += std::accumulate(missed.begin(), missed.end(), 0.0);
  }
  const std::span<const double> tail = scores.subspan(bounds.size() * block_size);
  sums[kAbove] += above(tail);
  sums[kAboveAdmitted] += above(tail);
  read += static_cast<double>(tail.size());
  sums[kAttended] += read / static_cast<double>(scores.size());
  sums[kIndexTerms] += 1.0;
}

}  // namespace

std::vector<std::vector<double>> IndexQualitySums(const RecordedWindow& window,
                                                  const RecordedLayer& layer,
                                                  std::span<const BlockBounds> indices) {
  std::vector<std::vector<double>> sums(indices.size(), std::vector<double>(kIndexSums));
  for (const RecordedRow& row : layer.rows) {
    for (int32_t h = 0; h < window.num_query_heads; ++h) {
      const float threshold = row.thresholds[static_cast<size_t>(h)];
      const std::vector<double> scores = RowScores(window, layer, row, h);
      const std::vector<double> weights = Softmax(GatedLogits(window, scores, threshold));
      for (size_t i = 0; i < indices.size(); ++i) {
        Add(scores, weights, indices[i].Row(row, h), threshold,
            static_cast<size_t>(indices[i].block_size()), sums[i]);
      }
    }
  }
  return sums;
}

}  // namespace eta
