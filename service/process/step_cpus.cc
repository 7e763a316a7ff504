#include "service/process/step_cpus.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"

namespace eta {
namespace {

// Unasked no more than a part of the CPUs is taken from calls: to read, tokenise and write them
// takes more than to start kernels.
constexpr int kCpusOfStepCpu = 4;

absl::StatusOr<cpu_set_t> UsableCpus() {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) {
    return absl::ErrnoToStatus(errno, "sched_getaffinity");
  }
  return cpus;
}

}  // namespace

absl::Status CheckStepCpus(std::optional<int> asked) {
  if (asked.value_or(0) == 0) return absl::OkStatus();
  const auto cpus = UsableCpus();
  if (!cpus.ok()) return cpus.status();
  const int most = CPU_COUNT(&*cpus) - 1;
  if (*asked <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("must leave a CPU to calls, and this process may use ", most + 1));
}

int ChooseStepCpus(std::optional<int> asked, int gpus, int cpus) {
  return asked ? std::min(*asked, cpus - 1) : std::min(gpus, cpus / kCpusOfStepCpu);
}

absl::StatusOr<int> LeaveStepCpus(std::optional<int> asked, int gpus) {
  if (asked.value_or(gpus) == 0) return 0;
  auto cpus = UsableCpus();
  if (!cpus.ok()) return cpus.status();
  const int left = ChooseStepCpus(asked, gpus, CPU_COUNT(&*cpus));
  size_t cpu = CPU_SETSIZE;
  for (int i = 0; i < left; ++i) {
    do --cpu;
    while (!CPU_ISSET(cpu, &*cpus));
    CPU_CLR(cpu, &*cpus);
  }
  if (left == 0 || sched_setaffinity(0, sizeof(*cpus), &*cpus) == 0) return left;
  return absl::ErrnoToStatus(errno, "sched_setaffinity");
}

}  // namespace eta
