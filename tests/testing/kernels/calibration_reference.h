// Calibration on plain arrays: one head's scores of whole sequences, every quantity as a loop over
// them. What the streaming forms are held against.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibration/solvers/score_histogram.h"

namespace eta::testing {

// One sequence of one head.
struct ScoreTriangle {
  int32_t tokens = 0;
  std::vector<float> scores;      // [T, T], lower triangle used
  std::vector<float> thresholds;  // [T]

  std::span<const float> row(int32_t t) const {
    return std::span(scores).subspan(static_cast<size_t>(t) * static_cast<size_t>(tokens),
                                     static_cast<size_t>(t) + 1);
  }
};

// Normal scores of deviation `spread`, thresholds normal around `centre`.
ScoreTriangle RandomTriangle(uint64_t seed, int32_t tokens, double spread, double centre);

// sigma(beta * (score - threshold + offset))
double GateOf(double score, double threshold, double beta, double offset);

// Mean over all rows of the row mean of the gate, the thresholds being the sequences' own ...
double MeanGate(std::span<const ScoreTriangle> sequences, double beta, double offset);
// ... or c for every row, on the scores themselves or moved to the centres of their bins.
double DensityAt(std::span<const ScoreTriangle> sequences, double beta, double c);
double BinnedDensityAt(std::span<const ScoreTriangle> sequences, const ScoreBins& bins, double beta,
                       double c);

// One layer of one head, row by row.
ScoreHistogram CollectWhole(std::span<const ScoreTriangle> sequences, const ScoreBins& bins,
                            double beta, double offset);

}  // namespace eta::testing
