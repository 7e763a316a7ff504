// The integers that CollectCalibration counts on a device (eta-semantics.md, "Profile" and
// "Per-head z"). Per query head they are: a histogram of scores S = s * <q, k>, in which the pair
// (row of T keys, key) weighs 1/T; the mean of the gate; and the z that above-threshold keys need.
// They are integers so that any order and any cut of the work gives the same.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/block_bound.h"

namespace eta {

// Equal bins over [low, high): bin b holds low + b * width() <= S < low + (b + 1) * width().
// calibration/solvers/score_histogram.h says why there are this many and what they cost in
// precision.
struct ScoreBins {
  int32_t count = 16384;
  double low = -64.0;
  double high = 64.0;

  constexpr double width() const { return (high - low) / count; }
  constexpr double centre(int32_t bin) const { return low + (bin + 0.5) * width(); }

  bool operator==(const ScoreBins&) const = default;
};

inline constexpr int32_t kMaxScoreBins = 1 << 17;
inline constexpr double kMaxScoreRange = 1e4;  // of -low and high

// z comes in multiples of 1/256, rounded up: bin k holds keys whose block is admitted at z = k/256
// and not at (k - 1)/256.
inline constexpr int32_t kZStepsPerUnit = 256;
inline constexpr int32_t kMaxHeadZ = 16;
inline constexpr int32_t kZBins = kMaxHeadZ * kZStepsPerUnit + 1;
inline constexpr int32_t kZBeyond = kZBins;           // more than kMaxHeadZ is needed
inline constexpr int32_t kZUnreachable = kZBins + 1;  // s |q| M < tau_eff: no z admits it

// The z of a bin, exact in float32.
constexpr float ZOfBin(int32_t bin) {
  return static_cast<float>(bin) / static_cast<float>(kZStepsPerUnit);
}

// The first bin whose z admits a block (bound >= threshold); else kZBeyond or kZUnreachable. The
// bound never falls as z grows, also when rounded, so bisection finds the bin. The search first
// tries the solution of the unrounded equation, since that bin or its neighbour is nearly always
// right.
constexpr int32_t NeededZBin(const BlockBound& bound, float threshold) {
  if (bound.scale * bound.ceiling < threshold) return kZUnreachable;
  if (!(bound.At(ZOfBin(kZBins - 1)) >= threshold)) return kZBeyond;
  int32_t low = 0;
  int32_t high = kZBins - 1;
  const float solution =
      (threshold / bound.scale - bound.mean) / bound.deviation * static_cast<float>(kZStepsPerUnit);
  int32_t next = 0;
  if (solution > 0.0f) next = solution < kZBins - 2 ? static_cast<int32_t>(solution) + 1 : high - 1;
  for (int32_t tries = 0; low < high; ++tries) {
    const bool admits = bound.At(ZOfBin(next)) >= threshold;
    (admits ? high : low) = admits ? next : next + 1;
    next = tries >= 2 ? (low + high) / 2 : admits ? high - 1 : low;
  }
  return low;
}

// Weights are fixed-point numbers: 1 is 2^48. A key of a row of T keys weighs rint(2^48 / T).
inline constexpr double kCalibrationUnit = 281474976710656.0;
// The most rows that cells can count before a sum of weights could wrap.
inline constexpr int64_t kMaxCalibrationRows = 65535;

inline uint64_t CalibrationWeight(int64_t row_keys) {
  return static_cast<uint64_t>(std::llrint(kCalibrationUnit / static_cast<double>(row_keys)));
}

// The layout of the uint64 cells of one query head.
struct CalibrationCells {
  int32_t bins = 0;

  constexpr explicit CalibrationCells(const ScoreBins& score_bins) : bins(score_bins.count) {}

  constexpr int64_t weight(int32_t bin) const { return bin; }  // [bins]
  // Counts of the keys with S < low, with S >= high, and with S NaN or infinite. The last have no
  // weight.
  constexpr int64_t below_weight() const { return bins; }
  constexpr int64_t above_weight() const { return bins + 1; }
  constexpr int64_t below() const { return bins + 2; }
  constexpr int64_t above() const { return bins + 3; }
  constexpr int64_t not_finite() const { return bins + 4; }
  // Sum over rows of the row mean of the gate m, in units of 2^-48. Each row's mean is rounded to
  // units, so the sum may differ by a few units with the cut of the work. A row with a NaN
  // threshold or score adds nothing.
  constexpr int64_t gate() const { return bins + 5; }
  // Above-threshold keys (S >= tau_eff) of a decode row of T keys, by what admits their block: a z
  // [kZBins], kZBeyond or kZUnreachable. Keys in pinned blocks and in the tail need no z and count
  // as unconditional.
  constexpr int64_t needed(int32_t z_bin) const { return bins + 6 + z_bin; }
  constexpr int64_t unconditional() const { return bins + 6 + kZUnreachable + 1; }
  constexpr int64_t size() const { return unconditional() + 1; }
};

}  // namespace eta
