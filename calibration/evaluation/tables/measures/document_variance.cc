#include "calibration/evaluation/tables/measures/document_variance.h"

namespace eta {

std::optional<double> BetweenDocuments(std::span<const std::vector<double>> documents,
                                       std::optional<size_t> without) {
  std::vector<const std::vector<double>*> kept;
  for (size_t i = 0; i < documents.size(); ++i) {
    if (i != without) kept.push_back(&documents[i]);
  }
  if (kept.size() < 2 || kept.front()->empty()) return std::nullopt;
  const size_t rows = kept.front()->size();
  std::vector<double> trend(rows);
  for (const std::vector<double>* document : kept) {
    for (size_t t = 0; t < rows; ++t) trend[t] += (*document)[t];
  }
  for (double& mean : trend) mean /= static_cast<double>(kept.size());
  // Without the trend the grand mean is 0.
  double total = 0.0;
  double between = 0.0;
  double raw = 0.0;
  for (const std::vector<double>* document : kept) {
    double sum = 0.0;
    for (size_t t = 0; t < rows; ++t) {
      const double value = (*document)[t] - trend[t];
      sum += value;
      total += value * value;
      raw += (*document)[t] * (*document)[t];
    }
    between += sum * sum / static_cast<double>(rows);
  }
  constexpr double kRounding = 1e-24;  // of squares: documents that are equal
  if (!(total > kRounding * raw)) return std::nullopt;
  return between / total;
}

}  // namespace eta
