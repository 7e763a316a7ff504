// A calibration job against the model and the limits it will run in: checked, defaults filled in.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "calibration/calibrator.h"
#include "calibration/solvers/sample_split.h"

namespace eta {

struct PreparedJob {
  // Everything but thresholds (all 0), z per head, reached and evidence, of which the counts of
  // sequences and tokens are there.
  ProfileContent content;
  SampleSplit split;
  // The model has thresholds to match: a predictor, and the gate that they are the middle of.
  bool has_dynamic_gate = false;
  double beta = 0.0;  // of the soft density
};

// The soft density of a model without a gate counts a score as above the threshold by a sigmoid of
// this steepness: nearly a step (90 % of the way within 0.15), and still smooth enough that bins of
// 1/128 do not show.
inline constexpr double kUngatedBeta = 20.0;

// INVALID_ARGUMENT and FAILED_PRECONDITION as of Calibrate, before any pass.
absl::StatusOr<PreparedJob> PrepareJob(const EngineInfo& info, const Limits& limits,
                                       const CalibrationJob& job);

}  // namespace eta
