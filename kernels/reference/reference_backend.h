// The explanation and the judge: every op as plain loops in double precision over float32 inputs.
// Bounds are computed in float32, as the contract asks. Single-threaded.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace eta::reference {

std::unique_ptr<Backend> MakeBackend();

}  // namespace eta::reference
