// The constant that replaces a head's predicted thresholds: the root c of g(c) = target, with g(c)
// = sum_b H[b] * sigma(beta * (centre_b - c)) and H normalised (the paper's Algorithm 1;
// eta-semantics.md, "Profile"). g falls from 1 to 0.
//
// Scores outside the histogram's range count as if they lay at its near end. That moves g(c) by at
// most
//   below * sigma(beta * (low - c)) + above * sigma(beta * (c - high)),
// where below and above are shares of all weight: sigma is within that of its limits 0 and 1 on
// either side of the end. If this bound is at most kMaxOutsideDensity at the root, the clamp is
// harmless; with beta = 5 a distance of 6 from the end is enough for any share. Otherwise the head
// is refused.
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
  // The soft density of every head, (0, 1]. Absent: each head's own mean gate (match_dynamic).
  std::optional<double> density{};
};

struct FrozenThreshold {
  double threshold = 0.0;  // tau: root + offset. As float32 (in a profile) it moves the soft
                           // density by up to beta / 4 * 2^-24 * |threshold|
  double target = 0.0;
  double reached = 0.0;  // g(root)
};

// g(c), summed with compensation, exact to a few units of the last place. 0 for an empty head.
double SoftDensity(const HeadScores& scores, const ScoreBins& bins, double beta, double c);
// The mean of g(threshold - offset) over all heads. REQUIRES: thresholds of [L, HQ].
double MeanSoftDensity(const ScoreHistogram& histogram, std::span<const float> thresholds,
                       double beta, double offset);

// Bisects until the midpoint of two doubles is one of them, and takes the end whose g is nearer the
// target. If g equals the target over a whole interval (a gate that is all 0 or all 1 in double
// precision), takes the interval's end on the side of the scores. InvalidArgument for options out
// of limits. FailedPrecondition, naming layer and head (`layer` and `head` serve only for that),
// with the reason NO_SCORES (no rows or no weight), SCORES_NOT_FINITE, or SCORES_OUT_OF_RANGE with
// their count and the range. Internal if rows, weights and gates of a head contradict one another.
absl::StatusOr<FrozenThreshold> SolveFrozenThreshold(const HeadScores& scores,
                                                     const ScoreBins& bins,
                                                     const FrozenOptions& options, int32_t layer,
                                                     int32_t head);

// Solves all heads, [L, HQ], up to the first error.
absl::StatusOr<std::vector<FrozenThreshold>> SolveFrozenThresholds(const ScoreHistogram& histogram,
                                                                   const FrozenOptions& options);

}  // namespace eta
