// Calibration on plain arrays: one head's scores of whole sequences, each quantity as a loop over
// them. The streaming forms are compared with it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibration/solvers/score_histogram.h"

namespace eta::testing {

// The scores of one sequence and head.
struct ScoreTriangle {
  int32_t tokens = 0;
  std::vector<float> scores;      // [T, T], lower triangle used
  std::vector<float> thresholds;  // [T]

  std::span<const float> row(int32_t t) const {
    return std::span(scores).subspan(static_cast<size_t>(t) * static_cast<size_t>(tokens),
                                     static_cast<size_t>(t) + 1);
  }
};

// Normal scores of deviation `spread`, and normal thresholds around `centre`.
ScoreTriangle RandomTriangle(uint64_t seed, int32_t tokens, double spread, double centre);

// sigma(beta * (score - threshold + offset))
double GateOf(double score, double threshold, double beta, double offset);

// The mean over all rows of the row mean of the gate, with the sequences' own thresholds.
double MeanGate(std::span<const ScoreTriangle> sequences, double beta, double offset);
// The same with the threshold c for every row: on the scores themselves, or on the centres of their
// bins.
double DensityAt(std::span<const ScoreTriangle> sequences, double beta, double c);
double BinnedDensityAt(std::span<const ScoreTriangle> sequences, const ScoreBins& bins, double beta,
                       double c);

// Collects one layer of one head row by row.
ScoreHistogram CollectWhole(std::span<const ScoreTriangle> sequences, const ScoreBins& bins,
                            double beta, double offset);

}  // namespace eta::testing
