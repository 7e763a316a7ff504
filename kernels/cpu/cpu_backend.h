// The embedded default: SIMD over every instruction set that the build and the machine share
// (chosen once, at run time), a fixed pool of threads, 16-bit or 32-bit KV.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace eta::cpu {

// num_threads 0: one per core that this process may use.
std::unique_ptr<Backend> MakeBackend(int num_threads);

}  // namespace eta::cpu
