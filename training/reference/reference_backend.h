// The reference of training: the explanation of the ops, and the judge of the other backends. Every
// op is plain loops in double precision; nothing is tuned. Single-threaded.
#pragma once

#include <memory>

#include "training/backend.h"

namespace eta::training::reference {

// `activations`: of activations, weights of products and residuals. float32; or float64, for finite
// differences, which need what layers hand on to be as exact as what they compute.
std::unique_ptr<TrainingBackend> MakeBackend(DType activations = DType::kFloat32);

}  // namespace eta::training::reference
