// The arguments that every op of the CPU backend gets beside its parameters.
#pragma once

#include "kernels/batch.h"
#include "kernels/cpu/workers.h"

namespace eta::cpu {

struct Context {
  Workers& workers;
  const BatchView& batch;  // the planned step
  bool amx = false;  // prefill rows are multiplied on AMX tiles; REQUIRES: WhyNoAmx() is empty
};

}  // namespace eta::cpu
