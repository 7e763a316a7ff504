// The checkpoint of a run: what its trainer and its data hold, as a file.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "training/commands/rank_team.h"
#include "training/state/training_checkpoint.h"

namespace eta::training {

// How far a run is, beside its trainer.
struct RunPosition {
  int64_t sequences = 0;  // that were dealt
  double seconds = 0.0;   // that training took
  int64_t measured = 0;   // step of the last measurement: a run that goes on repeats none
};

// Errors of WriteTrainingCheckpoint, and of the backend: of a device that is lost nothing is
// written, and what was there before stays.
absl::Status SaveRun(const std::string& path, const Trainer& trainer, const Parameters& parameters,
                     const RunPosition& position,
                     const std::map<std::string, std::string>& settings);

// Gives the team what the checkpoint has. Errors of CheckSettings, TrainingCheckpoint and
// Parameters::Write.
absl::StatusOr<RunPosition> RestoreRun(const TrainingCheckpoint& checkpoint, RankTeam& team,
                                       const std::map<std::string, std::string>& settings);

}  // namespace eta::training
