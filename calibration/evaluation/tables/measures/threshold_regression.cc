#include "calibration/evaluation/tables/measures/threshold_regression.h"

#include <algorithm>
#include <cmath>

#include "calibration/evaluation/perplexity/alignment.h"

namespace eta {
namespace {

constexpr size_t kTarget = kMomentSize - 1;
// What lies below these shares is rounding: what a statistic adds to others, as a share of its own
// variance, and its variance, as a share of its own square.
constexpr double kLeastShare = 1e-9;
constexpr double kLeastVariance = 1e-13;

using Moments = std::array<std::array<double, kMomentSize>, kMomentSize>;

Moments Square(std::span<const double> sums) {
  Moments square = {};
  size_t next = 0;
  for (size_t i = 0; i < kMomentSize; ++i) {
    for (size_t j = i; j < kMomentSize; ++j) square[i][j] = square[j][i] = sums[next++];
  }
  return square;
}

// Takes out of all moments what variable `by` explains: one step of Gaussian elimination.
void Sweep(Moments& moments, size_t by) {
  const std::array<double, kMomentSize> pivot = moments[by];
  for (size_t i = 0; i < kMomentSize; ++i) {
    const double factor = pivot[i] / pivot[by];
    for (size_t j = 0; j < kMomentSize; ++j) moments[i][j] -= factor * pivot[j];
  }
}

}  // namespace

std::array<double, kRowStatistics> RowStatistics(const RecordedWindow& window,
                                                 const RecordedLayer& layer, const RecordedRow& row,
                                                 int32_t head) {
  const std::vector<double> scores = RowScores(window, layer, row, head);
  const auto count = static_cast<double>(scores.size());
  const double lse = LogSumExp(scores);
  double q_squares = 0.0;
  for (const float q : window.query(row, head)) q_squares += static_cast<double>(q) * q;
  double sum = 0.0;
  double entropy = 0.0;
  for (const double score : scores) {
    sum += score;
    entropy -= std::exp(score - lse) * (score - lse);
  }
  const double mean = sum / count;
  double squares = 0.0;
  for (const double score : scores) squares += (score - mean) * (score - mean);
  return {std::sqrt(q_squares),
          lse,
          *std::ranges::max_element(scores),
          std::sqrt(squares / count),
          entropy,
          std::log(count),
          mean,
          row.hidden_norm};
}

std::vector<double> RegressionSums(const RecordedWindow& window, const RecordedLayer& layer,
                                   int32_t head) {
  std::vector<double> sums(kRegressionSums);
  for (const RecordedRow& row : layer.rows) {
    std::array<double, kMomentSize> terms = {1.0};
    std::ranges::copy(RowStatistics(window, layer, row, head), terms.begin() + 1);
    terms[kTarget] = row.thresholds[static_cast<size_t>(head)];
    size_t next = 0;
    for (size_t i = 0; i < kMomentSize; ++i) {
      for (size_t j = i; j < kMomentSize; ++j) sums[next++] += terms[i] * terms[j];
    }
  }
  return sums;
}

std::optional<double> ExplainedShare(std::span<const double> sums,
                                     std::optional<size_t> statistic) {
  Moments moments = Square(sums);
  if (!(moments[0][0] > 0.0)) return std::nullopt;
  std::array<double, kMomentSize> raw;
  for (size_t i = 0; i < kMomentSize; ++i) raw[i] = moments[i][i];
  Sweep(moments, 0);
  const Moments centred = moments;
  const double total = centred[kTarget][kTarget];
  const auto varies = [&](size_t i) { return centred[i][i] > kLeastVariance * raw[i]; };
  if (!varies(kTarget)) return std::nullopt;
  for (size_t i = 0; i < kRowStatistics; ++i) {
    if (statistic && *statistic != i) continue;
    if (varies(i + 1) && moments[i + 1][i + 1] > kLeastShare * centred[i + 1][i + 1]) {
      Sweep(moments, i + 1);
    }
  }
  return std::clamp(1.0 - moments[kTarget][kTarget] / total, 0.0, 1.0);
}

}  // namespace eta
