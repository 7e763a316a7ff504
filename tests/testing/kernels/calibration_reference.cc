#include "tests/testing/kernels/calibration_reference.h"

#include <cmath>
#include <functional>
#include <random>

namespace eta::testing {
namespace {

double MeanOverRows(std::span<const ScoreTriangle> sequences,
                    const std::function<double(float score, float threshold)>& value) {
  long double sum = 0.0L;
  int64_t rows = 0;
  for (const ScoreTriangle& sequence : sequences) {
    for (int32_t t = 0; t < sequence.tokens; ++t, ++rows) {
      long double row = 0.0L;
      for (const float score : sequence.row(t)) {
        row += value(score, sequence.thresholds[static_cast<size_t>(t)]);
      }
      sum += row / (t + 1);
    }
  }
  return static_cast<double>(sum / rows);
}

}  // namespace

ScoreTriangle RandomTriangle(uint64_t seed, int32_t tokens, double spread, double centre) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  ScoreTriangle triangle = {.tokens = tokens, .scores = {}, .thresholds = {}};
  const auto n = static_cast<size_t>(tokens);
  for (size_t i = 0; i < n * n; ++i) {
    triangle.scores.push_back(static_cast<float>(spread * normal(random)));
  }
  for (size_t i = 0; i < n; ++i) {
    triangle.thresholds.push_back(static_cast<float>(centre + 0.5 * normal(random)));
  }
  return triangle;
}

double GateOf(double score, double threshold, double beta, double offset) {
  return 1.0 / (1.0 + std::exp(-beta * (score - threshold + offset)));
}

double MeanGate(std::span<const ScoreTriangle> sequences, double beta, double offset) {
  return MeanOverRows(sequences, [&](float score, float threshold) {
    return GateOf(score, threshold, beta, offset);
  });
}

double DensityAt(std::span<const ScoreTriangle> sequences, double beta, double c) {
  return MeanOverRows(sequences, [&](float score, float) { return GateOf(score, c, beta, 0.0); });
}

double BinnedDensityAt(std::span<const ScoreTriangle> sequences, const ScoreBins& bins, double beta,
                       double c) {
  return MeanOverRows(sequences, [&](float score, float) {
    const double bin = std::floor((score - bins.low) / bins.width());
    return GateOf(bins.low + (bin + 0.5) * bins.width(), c, beta, 0.0);
  });
}

ScoreHistogram CollectWhole(std::span<const ScoreTriangle> sequences, const ScoreBins& bins,
                            double beta, double offset) {
  ScoreHistogram histogram = *ScoreHistogram::Create(1, 1, bins);
  for (const ScoreTriangle& sequence : sequences) {
    for (int32_t t = 0; t < sequence.tokens; ++t) {
      double gate = 0.0;
      for (const float score : sequence.row(t)) {
        gate += GateOf(score, sequence.thresholds[static_cast<size_t>(t)], beta, offset);
      }
      histogram.AddKeys(0, 0, t + 1, sequence.row(t));
      histogram.AddGate(0, 0, t + 1, gate);
    }
  }
  return histogram;
}

}  // namespace eta::testing
