// CPUs on which no calls are answered, for the threads that compute. One thread starts all kernels
// of a GPU's steps; each time that it waits for a CPU which a call has, all streams wait, and that
// happens beside a flood of calls although other CPUs are idle.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eta {

// INVALID_ARGUMENT if so many leave none to calls; the kernel's error if it does not tell how many
// CPUs this process may use.
absl::Status CheckStepCpus(std::optional<int> asked);

// Of `cpus` that this process may use: `asked` as long as another is left, or one for each GPU, a
// quarter of all at most.
int ChooseStepCpus(std::optional<int> asked, int gpus, int cpus);

// Keeps the calling thread, and those that it starts from now on, off so many of the CPUs that it
// may use, the last ones. How many these are; the kernel's error if it does not let it.
absl::StatusOr<int> LeaveStepCpus(std::optional<int> asked, int gpus);

}  // namespace eta
