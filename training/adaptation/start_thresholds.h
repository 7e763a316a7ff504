// Start values of the thresholds of a model that is adapted: fitted to its attention before that.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "training/adaptation/threshold_fit.h"
#include "training/data/training_data.h"
#include "training/model/training_model.h"

namespace eta::training {

struct StartOptions {
  int32_t sequences = 16;  // that are run
  int32_t rows_per_sequence = 256;
  int32_t sequences_at_a_time = 1;  // the model's limit
  double mass = 0.97;               // of the attention that thresholds keep
  int threads = 1;
};

// One per layer. The first sequences of the data are run with a gate of no strength. Errors of the
// data and the model.
absl::StatusOr<std::vector<LinearThresholds>> FitStartThresholds(TrainingModel& model,
                                                                 TrainingData& data,
                                                                 const StartOptions& options);

}  // namespace eta::training
