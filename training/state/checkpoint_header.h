// What the header of a checkpoint says: the run's state, and which tensors there are.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/safetensors_header.h"
#include "training/state/training_state.h"

namespace eta::training {

// Tensor -> shape, all float32.
using TensorShapes = std::map<std::string, std::vector<int64_t>>;

inline constexpr char kCheckpointFormatKey[] = "format";
inline constexpr char kCheckpointFormat[] = "eta-train checkpoint 1";
inline constexpr char kCheckpointStateKey[] = "state";
inline constexpr char kCheckpointDigest[] = "sha256";  // the tensor
inline constexpr int64_t kCheckpointDigestCharacters = 64;

// INVALID_ARGUMENT for a safetensors file that is no checkpoint of a run, or one of another
// version.
absl::StatusOr<TrainingState> ReadTrainingState(const std::map<std::string, std::string>& metadata,
                                                const std::map<std::string, TensorInfo>& tensors);

// FAILED_PRECONDITION naming tensors that are missing, not expected or of another shape: ten at
// most.
absl::Status CheckCheckpointTensors(const std::map<std::string, TensorInfo>& tensors,
                                    const TensorShapes& expected);

}  // namespace eta::training
