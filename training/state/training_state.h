// Where a run stands, besides its weights: what a checkpoint says in text.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eta::training {

struct TrainingState {
  int64_t step = 0;           // steps that were done
  int64_t sequences = 0;      // that were dealt: the number of the next one
  int64_t skipped_steps = 0;  // whose gradients were not finite
  double seconds = 0.0;       // that training took
  // What schedules remember from step to step, by name.
  std::map<std::string, double> schedule = {};
  // What a run that goes on must have in common with the one that began, by the name of its flag.
  std::map<std::string, std::string> settings = {};

  bool operator==(const TrainingState&) const = default;
};

// JSON, from which every number comes back to the bit. Internal for a number that is not finite.
absl::StatusOr<std::string> WriteTrainingState(const TrainingState& state);

// INVALID_ARGUMENT, naming the field.
absl::StatusOr<TrainingState> ParseTrainingState(std::string_view json);

// FAILED_PRECONDITION naming the settings that differ, with both values: ten at most.
absl::Status CheckSettings(const std::map<std::string, std::string>& checkpoint,
                           const std::map<std::string, std::string>& run);

}  // namespace eta::training
