#include "service/step_cpus.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace eta {
namespace {

absl::StatusOr<cpu_set_t> UsableCpus() {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) {
    return absl::ErrnoToStatus(errno, "sched_getaffinity");
  }
  return cpus;
}

}  // namespace

absl::Status CheckStepCpus(std::optional<int> asked) {
  if (!asked) return absl::OkStatus();
  const auto cpus = UsableCpus();
  if (!cpus.ok()) return cpus.status();
  const int most = CPU_COUNT(&*cpus) - 1;
  if (*asked <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("must leave a CPU to calls, and this process may use ", most + 1));
}

absl::Status LeaveStepCpus(std::optional<int> asked, int gpus) {
  const int wished = asked.value_or(gpus);
  if (wished == 0) return absl::OkStatus();
  auto cpus = UsableCpus();
  if (!cpus.ok()) return cpus.status();
  size_t cpu = CPU_SETSIZE;
  for (int left = std::min(wished, CPU_COUNT(&*cpus) - 1); left > 0; --left) {
    do --cpu;
    while (!CPU_ISSET(cpu, &*cpus));
    CPU_CLR(cpu, &*cpus);
  }
  return sched_setaffinity(0, sizeof(*cpus), &*cpus) == 0
             ? absl::OkStatus()
             : absl::ErrnoToStatus(errno, "sched_setaffinity");
}

}  // namespace eta
