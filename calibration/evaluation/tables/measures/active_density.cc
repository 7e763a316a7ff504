#include "calibration/evaluation/tables/measures/active_density.h"

#include <algorithm>

namespace eta {

std::vector<std::vector<double>> ActiveDensities(const RecordedWindow& window,
                                                 const RecordedLayer& layer) {
  std::vector<std::vector<double>> densities(static_cast<size_t>(window.num_query_heads));
  for (const RecordedRow& row : layer.rows) {
    for (int32_t h = 0; h < window.num_query_heads; ++h) {
      const auto head = static_cast<size_t>(h);
      const std::vector<double> scores = RowScores(window, layer, row, h);
      const auto active = std::ranges::count_if(
          scores, [&](double score) { return score >= row.thresholds[head]; });
      densities[head].push_back(static_cast<double>(active) / row.num_keys());
    }
  }
  return densities;
}

}  // namespace eta
