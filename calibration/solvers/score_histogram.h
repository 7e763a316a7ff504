// The scores as calibration keeps them, per layer and query head: a histogram of S = s * <q, k>, in
// which the pair (row of t keys, key) weighs 1/t; and the sum over rows of the row mean of the gate
// m (eta-semantics.md, "Profile"; the paper's Algorithm 1). So every row weighs 1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/calibration_cells.h"

namespace eta {

// Why there are 16,384 ScoreBins over [-64, 64).
//
// A score counts as if it lay at its bin's centre, at most width()/2 away, and the density falls
// with the threshold. So the constant of a histogram is within width()/2 of the constant of the
// scores themselves. In practice the errors within a bin cancel. Against bins of 1/8192 the worst
// of eta-27m's 64 heads in four domains is off by 2.2e-3 in the constant and 7.6e-6 in soft density
// at a width of 1/128, and by 6.0e-3 and 1.8e-5 at 1/64. Constants move most where the density
// depends on them least.
//
// Scores of eta-27m lie in [-50, 51], hence the range. Scores outside are counted, and a threshold
// near them is refused (frozen_threshold.h). The width is a power of two that divides the ends. So
// float32 arithmetic finds the same bin as double, floor(S * 128) + 8192, except for scores less
// than 2^-47 below 0.

inline constexpr int32_t kMinScoreBins = 16;
inline constexpr int64_t kMaxScoreCells = int64_t{1} << 27;  // layers * query heads * bins: 1 GiB

// InvalidArgument, naming the field and its limits.
absl::Status CheckScoreBins(const ScoreBins& bins);

// Counts of the scores that no bin holds.
struct OutsideScores {
  int64_t below = 0;  // S < low
  int64_t above = 0;  // S >= high
  double below_weight = 0.0;
  double above_weight = 0.0;
  int64_t not_finite = 0;  // NaN or infinite; without weight

  bool operator==(const OutsideScores&) const = default;
};

// The scores of one layer and query head.
struct HeadScores {
  std::span<const double> weights = {};  // [bins]
  OutsideScores outside = {};
  double gate_sum = 0.0;  // sum over rows of the row mean of m
  int64_t rows = 0;

  // The mean over rows of the row mean of the gate; d of the paper's Algorithm 1. 0 without rows.
  double mean_gate() const { return rows == 0 ? 0.0 : gate_sum / static_cast<double>(rows); }
};

// Copyable; not thread-safe. Any order and any cut into chunks, devices and sequences gives the
// same sums up to their rounding (relative 1e-12 over 10^6 rows). Counts are exact.
class ScoreHistogram {
 public:
  // InvalidArgument for bins out of limits, for sizes below 1, and for more than kMaxScoreCells
  // cells.
  static absl::StatusOr<ScoreHistogram> Create(int32_t num_layers, int32_t num_query_heads,
                                               const ScoreBins& bins = {});

  int32_t num_layers() const { return num_layers_; }
  int32_t num_query_heads() const { return num_query_heads_; }
  const ScoreBins& bins() const { return bins_; }

  // Adds some scores of a row of `row_keys` keys; the others may come in other calls. REQUIRES,
  // also in the calls below: layer and head in range, row_keys >= 1.
  void AddKeys(int32_t layer, int32_t head, int64_t row_keys, std::span<const float> scores);
  // Adds the gate of a whole row: the sum of m over its `row_keys` keys.
  void AddGate(int32_t layer, int32_t head, int64_t row_keys, double gate_sum);
  // Adds the sums of a device over rows of one head. InvalidArgument, naming layer, head and field,
  // for weights that are not [bins], and for negative or non-finite sums.
  absl::Status Add(int32_t layer, int32_t head, const HeadScores& increment);
  // Adds all of another histogram. InvalidArgument for another shape.
  absl::Status Merge(const ScoreHistogram& other);

  // The weights are views of the histogram: valid until it changes or is destroyed.
  HeadScores head(int32_t layer, int32_t head) const&;
  HeadScores head(int32_t layer, int32_t head) const&& = delete;

 private:
  struct Sums {
    OutsideScores outside;
    double gate_sum = 0.0;
    int64_t rows = 0;
  };

  ScoreHistogram(int32_t num_layers, int32_t num_query_heads, const ScoreBins& bins);
  size_t Index(int32_t layer, int32_t head) const;
  std::span<double> Weights(int32_t layer, int32_t head);
  void Accumulate(int32_t layer, int32_t head, const HeadScores& increment);

  int32_t num_layers_;
  int32_t num_query_heads_;
  ScoreBins bins_;
  std::vector<double> weights_;  // [L, HQ, bins]
  std::vector<Sums> sums_;       // [L, HQ]
};

}  // namespace eta
