// What calibration keeps of the scores: per layer and query head, a histogram of S = s * <q, k> in
// which the pair (row of t keys, key) weighs 1/t, and beside it the sum over rows of the row mean
// of the gate m (eta-semantics.md, "Profile"; Algorithm 1 of the paper). Every row thus weighs 1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/calibration_cells.h"

namespace eta {

// How many ScoreBins, and what they cost: a score is taken to lie at its bin's centre, at most
// width()/2 away, and the density falls with the threshold; so the constant that a histogram gives
// is within width()/2 of the one that the scores themselves give. In practice the errors within a
// bin cancel. Measured on eta-27m against bins of 1/8192 (beta 5; 2,048 tokens each of
// encyclopedia, code, law and books; 64 heads; the worst head of any domain, the worst domain's
// root mean square):
//
//   width   bins of [-64, 64)   constant, worst   rms      soft density, worst
//   1/16         2,048          2.7e-2            4.2e-3   2.2e-4
//   1/64         8,192          6.0e-3            9.7e-4   1.8e-5
//   1/128       16,384          2.2e-3            4.1e-4   7.6e-6
//   1/256       32,768          1.3e-3            1.8e-4   2.8e-6
//
// Constants move most where the density feels them least. The golden cases' are 1e-4 off at their
// own 4,096 bins of 1/205, 2.6e-4 at 1/128. The scores lay in [-50, 51], hence the range; what
// falls outside is counted, and a threshold near it refused (frozen_threshold.h). The width is a
// power of two that divides the ends, so float32 arithmetic finds the bin that double does, floor(S
// * 128) + 8192, but for scores less than 2^-47 below 0.

inline constexpr int32_t kMinScoreBins = 16;
inline constexpr int64_t kMaxScoreCells = int64_t{1} << 27;  // layers * query heads * bins: 1 GiB

// InvalidArgument, naming the field and its limits.
absl::Status CheckScoreBins(const ScoreBins& bins);

// Scores that no bin holds.
struct OutsideScores {
  int64_t below = 0;  // S < low
  int64_t above = 0;  // S >= high
  double below_weight = 0.0;
  double above_weight = 0.0;
  int64_t not_finite = 0;  // NaN or infinite; without weight

  bool operator==(const OutsideScores&) const = default;
};

// One layer and query head.
struct HeadScores {
  std::span<const double> weights = {};  // [bins]
  OutsideScores outside = {};
  double gate_sum = 0.0;  // over rows, of the row mean of m
  int64_t rows = 0;

  // d of Algorithm 1: the mean over rows of the row mean of the gate. 0 without rows.
  double mean_gate() const { return rows == 0 ? 0.0 : gate_sum / static_cast<double>(rows); }
};

// Copyable; not thread-safe. Any order and any cut into chunks, devices and sequences gives the
// same sums up to their rounding (relative 1e-12 over 10^6 rows; counts exactly).
class ScoreHistogram {
 public:
  // InvalidArgument for bins out of limits, and for sizes below 1 or past kMaxScoreCells together.
  static absl::StatusOr<ScoreHistogram> Create(int32_t num_layers, int32_t num_query_heads,
                                               const ScoreBins& bins = {});

  int32_t num_layers() const { return num_layers_; }
  int32_t num_query_heads() const { return num_query_heads_; }
  const ScoreBins& bins() const { return bins_; }

  // Some of the scores of a row that has `row_keys` of them; the rest may come in other calls.
  // REQUIRES: layer and head in range, row_keys >= 1, as in the calls below.
  void AddKeys(int32_t layer, int32_t head, int64_t row_keys, std::span<const float> scores);
  // A whole row's gate: the sum of m over its `row_keys` keys.
  void AddGate(int32_t layer, int32_t head, int64_t row_keys, double gate_sum);
  // What a device has summed up over rows of one head. InvalidArgument, naming layer, head and
  // field, for weights that are not [bins], and for negative or non-finite sums.
  absl::Status Add(int32_t layer, int32_t head, const HeadScores& increment);
  // All of another histogram. InvalidArgument for another shape.
  absl::Status Merge(const ScoreHistogram& other);

  // Its weights are the histogram's own: valid until that changes or goes.
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
