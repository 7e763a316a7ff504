// The counts of devices over calibration sequences (kernels/calibration_cells.h), as the sums that
// thresholds and z are solved from.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/solvers/head_z.h"
#include "calibration/solvers/score_histogram.h"

namespace eta {

// Copyable; not thread-safe.
class CollectedCells {
 public:
  // InvalidArgument like ScoreHistogram and HeadZStatistics.
  static absl::StatusOr<CollectedCells> Create(int32_t num_layers, int32_t num_query_heads,
                                               const ScoreBins& bins = {});

  // Adds `cells` [L, HQ, CalibrationCells(bins).size()], counted over `rows` rows of every head.
  // Internal, reason CELLS_INCONSISTENT, naming layer, head and fault, if they cannot be counts
  // over that many rows: weights do not add up to the rows, counts lack their weight, there are
  // more gates than rows, or there are too many cells or rows. Nothing is added then.
  absl::Status Add(std::span<const uint64_t> cells, int64_t rows);

  const ScoreHistogram& histogram() const { return histogram_; }
  const HeadZStatistics& head_z() const { return head_z_; }

 private:
  CollectedCells(ScoreHistogram histogram, HeadZStatistics head_z)
      : histogram_(std::move(histogram)), head_z_(std::move(head_z)) {}

  ScoreHistogram histogram_;
  HeadZStatistics head_z_;
};

}  // namespace eta
