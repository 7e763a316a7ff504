// What every op of the CPU backend works with.
#pragma once

#include <vector>

#include "kernels/cpu/memory/scratch.h"
#include "kernels/cpu/workers.h"

namespace eta::training::cpu {

struct Context {
  eta::cpu::Workers& workers;
  std::vector<eta::cpu::Scratch>& scratch;  // [threads]
  eta::cpu::Scratch& shared;                // of an op as a whole
};

}  // namespace eta::training::cpu
