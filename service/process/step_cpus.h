// CPUs on which no calls are answered, for the threads that compute. One thread starts all kernels
// of a GPU's steps; each time that it waits for a CPU which a call has, all streams wait, and that
// happens beside a flood of calls although other CPUs are idle.
#pragma once

#include "absl/status/statusor.h"

namespace eta {

// Of `cpus` that this process may use (kernels/system/usable_cpus.h): one for each GPU, a quarter
// of all at most.
int ChooseStepCpus(int gpus, int cpus);

// Keeps the calling thread, and those that it starts from now on, off so many of the CPUs that it
// may use, the last ones. How many these are; the kernel's error if it does not let it.
absl::StatusOr<int> LeaveStepCpus(int gpus);

}  // namespace eta
