// A calibration job, checked against the model and the limits that it will run in, with defaults
// filled in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/calibrate/calibrator.h"
#include "calibration/needles/needle.h"
#include "calibration/solvers/sample_split.h"
#include "kernels/batch.h"

namespace eta {

struct PreparedJob {
  // The profile without its results: thresholds (all 0, or the default relative threshold), z per
  // head, reached and evidence are missing. The evidence has its counts of documents, sequences and
  // tokens already.
  ProfileContent content;
  SampleSplit split;
  std::vector<NeedleWindow> needles;  // of MakeNeedles; may be empty
  // True if the model has thresholds to match: a predictor, and a gate that the thresholds centre.
  bool has_dynamic_gate = false;
  double beta = 0.0;  // steepness of the soft density
};

// The default of relative thresholds (eta-semantics.md, "Relative thresholds"). The search for one
// begins there.
inline constexpr float kDefaultRelativeC = AttentionOptions{}.relative_c;

// The steepness of the soft density for a model without a gate: a sigmoid of it counts a score as
// above the threshold. This is nearly a step (90 % of the way within 0.15), and still so smooth
// that bins of 1/128 do not show.
inline constexpr double kUngatedBeta = 20.0;

// The target of a caller that names none: as much read as dynamic thresholds read, at most
// kDefaultPerplexityIncrease percent above their perplexity. A model that predicts nothing gets the
// sparsest profile that stays within so much of full attention.
ProfileTarget DefaultTarget(const ModelConfig& config);

// Whether relative thresholds would read less if the model had an index metric (eta-semantics.md,
// "Index kinds"): eta-eval index-metric measures one, and how much less.
bool LacksIndexMetric(const EngineInfo& info);

// Samples that have so many tokens together, or at least so many. INVALID_ARGUMENT (samples).
absl::Status CheckSampleSizes(size_t samples, int64_t tokens, int64_t max_tokens);

// All that can be said of a job before its samples are tokens, but for its id and labels.
// INVALID_ARGUMENT naming the field; FAILED_PRECONDITION (UNSUPPORTED_BY_MODEL).
absl::Status CheckJob(const CalibrationJob& job, const EngineInfo& info, const Limits& limits);

// Errors are INVALID_ARGUMENT and FAILED_PRECONDITION, as those of Calibrate before any pass.
absl::StatusOr<PreparedJob> PrepareJob(const EngineInfo& info, const Limits& limits,
                                       const CalibrationJob& job);

// Hides needles in the held-out text, in windows as long as its longest sequence: text is never
// repeated to fill one. INVALID_ARGUMENT (samples) if the job asks for a retrieval and the text has
// no place for needles.
absl::Status MakeNeedles(const Engine& engine, const CalibrationJob& job, PreparedJob& prepared);

}  // namespace eta
