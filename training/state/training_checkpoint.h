// A run on disk: a safetensors file with float32 tensors and, in its metadata, TrainingState. The
// last tensor, `sha256`, is over the data of all others in the order of the file.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/safetensors.h"
#include "training/state/checkpoint_header.h"
#include "training/state/training_state.h"

namespace eta::training {

// Fills `out` with the tensor of that name.
using TensorFiller = std::function<absl::Status(const std::string& name, std::span<float> out)>;

// The file is there whole and synced afterwards, or the one before stays as it was. One tensor is
// in memory at a time. DATA_LOSS, naming the tensor, for numbers that are not finite: they would
// take the place of good ones. RESOURCE_EXHAUSTED and others of the system, such as that no space
// is left on the disk.
absl::Status WriteTrainingCheckpoint(const std::string& path, const TrainingState& state,
                                     const TensorShapes& shapes, const TensorFiller& read);

// Move-only. Reads are thread-safe.
class TrainingCheckpoint {
 public:
  // Reads all of it once. NOT_FOUND; DATA_LOSS for a file that is cut short or damaged;
  // INVALID_ARGUMENT for any other file.
  static absl::StatusOr<TrainingCheckpoint> Open(const std::string& path);

  const TrainingState& state() const { return state_; }

  // As CheckCheckpointTensors.
  absl::Status CheckTensors(const TensorShapes& expected) const {
    return CheckCheckpointTensors(file_.tensors(), expected);
  }

  // REQUIRES: a tensor of that name and size. DATA_LOSS if the file has changed since Open, or for
  // numbers that are not finite.
  absl::Status Read(const std::string& name, std::span<float> out) const;

 private:
  TrainingCheckpoint(SafetensorsFile file, TrainingState state)
      : file_(std::move(file)), state_(std::move(state)) {}
  absl::Status CheckDigest() const;

  SafetensorsFile file_;
  TrainingState state_;
};

}  // namespace eta::training
