#include "service/process/step_cpus.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>

#include "absl/status/status.h"
#include "engine/base/status_macros.h"
#include "kernels/system/usable_cpus.h"

namespace eta {
namespace {

// No more than a part of the CPUs is taken from calls: to read, tokenise and write them
// takes more than to start kernels.
constexpr int kCpusOfStepCpu = 4;

absl::StatusOr<cpu_set_t> MaskOfThread() {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) {
    return absl::ErrnoToStatus(errno, "sched_getaffinity");
  }
  return cpus;
}

}  // namespace

int ChooseStepCpus(int gpus, int cpus) {
  return std::min(gpus, cpus / kCpusOfStepCpu);
}

absl::StatusOr<int> LeaveStepCpus(int gpus) {
  if (gpus == 0) return 0;
  ASSIGN_OR_RETURN(auto cpus, MaskOfThread());
  const int left = ChooseStepCpus(gpus, ReadUsableCpus().threads());
  size_t cpu = CPU_SETSIZE;
  for (int i = 0; i < left; ++i) {
    do --cpu;
    while (!CPU_ISSET(cpu, &cpus));
    CPU_CLR(cpu, &cpus);
  }
  if (left == 0 || sched_setaffinity(0, sizeof(cpus), &cpus) == 0) return left;
  return absl::ErrnoToStatus(errno, "sched_setaffinity");
}

}  // namespace eta
