// The reference backend: the explanation of the ops, and the judge of the other backends. Every op
// is plain loops in double precision over float32 inputs; nothing is tuned. Bounds are computed in
// float32, as the contract asks. Single-threaded.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace eta::reference {

std::unique_ptr<Backend> MakeBackend();

}  // namespace eta::reference
