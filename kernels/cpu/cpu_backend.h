// The embedded default backend: SIMD, a fixed pool of threads, 16-bit or 32-bit KV. The instruction
// set is the best one that both the build and the machine have; it is chosen once, at run time.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace eta::cpu {

// num_threads 0: one per core that this process may use. amx: prefill uses AMX if the machine has
// it.
std::unique_ptr<Backend> MakeBackend(int num_threads, bool amx);

}  // namespace eta::cpu
