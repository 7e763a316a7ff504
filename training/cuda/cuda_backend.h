// The backend of training on NVIDIA GPUs of compute capability 9.0: bfloat16 activations and
// weights of products, float32 residuals, gradients and sums.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "training/backend.h"

namespace eta::training::cuda {

// The first `num_devices` devices that the process sees, one rank each. UNAVAILABLE, with the
// reason, if one is missing or unfit, or if several need what this build or host has not.
absl::StatusOr<std::vector<std::unique_ptr<TrainingBackend>>> MakeBackends(int num_devices);

}  // namespace eta::training::cuda
