// The constant that replaces a head's predicted thresholds: the root c of g(c) = target, with
// g(c) = sum_b H[b] * sigma(beta * (centre_b - c)) and H normalised (Algorithm 1 of the paper;
// eta-semantics.md, "Profile"). g falls from 1 to 0.
//
// Scores outside the histogram's range count as if they lay at its near end. That moves g(c) by
//   below * sigma(beta * (low - c)) + above * sigma(beta * (c - high))
// at most (shares of all weight; sigma is within that of its limits 0 and 1 on either side of the
// end). Where this bound is kMaxOutsideDensity or less at the root, the clamp is harmless: with
// beta 5, 6 away from the end for any share. Elsewhere the head is refused.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/solvers/score_histogram.h"

namespace eta {

inline constexpr double kMaxOutsideDensity = 1e-13;
inline constexpr double kMinBeta = 1e-3;
inline constexpr double kMaxBeta = 1e3;

struct FrozenOptions {
  double beta = 0.0;    // [kMinBeta, kMaxBeta]
  double offset = 0.0;  // a; the gate compares S with threshold - a
  // Soft density of every head, (0, 1]; absent: each head's own mean gate (match_dynamic).
  std::optional<double> density{};
};

struct FrozenThreshold {
  double threshold = 0.0;  // tau: root + offset. As float32 (in a profile) it moves the soft
                           // density by up to beta / 4 * 2^-24 * |threshold|
  double target = 0.0;
  double reached = 0.0;  // g(root)
};

// g(c), summed with compensation: exact to a few units of the last place. 0 for an empty head.
double SoftDensity(const HeadScores& scores, const ScoreBins& bins, double beta, double c);

// Bisects until the midpoint of two doubles is one of them, and takes the end whose g is nearer the
// target. Where g equals the target over a whole interval (a gate that is all 0 or all 1 in double
// precision), its end on the scores' side.
// InvalidArgument for options out of limits. FailedPrecondition, naming layer and head (`layer` and
// `head` serve for that alone): reason NO_SCORES without rows or weight; SCORES_NOT_FINITE;
// SCORES_OUT_OF_RANGE with their count and the range. Internal where rows, weights and gates of a
// head contradict one another.
absl::StatusOr<FrozenThreshold> SolveFrozenThreshold(const HeadScores& scores,
                                                     const ScoreBins& bins,
                                                     const FrozenOptions& options, int32_t layer,
                                                     int32_t head);

// All heads, [L, HQ]; the first error.
absl::StatusOr<std::vector<FrozenThreshold>> SolveFrozenThresholds(const ScoreHistogram& histogram,
                                                                   const FrozenOptions& options);

}  // namespace eta
