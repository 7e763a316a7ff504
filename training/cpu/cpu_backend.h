// Training on the CPU, for small models: float32, products by OpenBLAS, threads. Results do not
// depend on the number of threads.
#pragma once

#include <memory>

#include "training/backend.h"

namespace eta::training::cpu {

// num_threads 0: as many as usable_cpus.h says.
std::unique_ptr<TrainingBackend> MakeBackend(int num_threads);

}  // namespace eta::training::cpu
