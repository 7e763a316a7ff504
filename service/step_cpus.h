// CPUs on which no calls are answered, for the threads that compute. One thread starts all kernels
// of a GPU's steps; each time that it waits for a CPU which a call has, all streams wait, and that
// happens beside a flood of calls although other CPUs are idle.
#pragma once

#include <optional>

#include "absl/status/status.h"

namespace eta {

// INVALID_ARGUMENT if so many leave none to calls; the kernel's error if it does not tell how many
// CPUs this process may use.
absl::Status CheckStepCpus(std::optional<int> asked);

// Keeps the calling thread, and those that it starts from now on, off the last CPUs of those that
// it may use: `asked` of them, or one for each GPU as long as another is left. The kernel's error
// if it does not let it.
absl::Status LeaveStepCpus(std::optional<int> asked, int gpus);

}  // namespace eta
