// The arguments that every op of the CPU backend gets beside its parameters.
#pragma once

#include "kernels/batch.h"
#include "kernels/cpu/workers.h"

namespace eta::cpu {

struct Context {
  Workers& workers;
  const BatchView& batch;  // the planned step
};

}  // namespace eta::cpu
