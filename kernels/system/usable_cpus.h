// How much of the host's CPUs this process may use. More threads that compute than that do not make
// a step faster: once a control group has used up its quota of a period, the kernel halts all its
// threads until the next one, in the middle of whatever they do.
#pragma once

#include <optional>

#include "kernels/system/control_groups.h"

namespace eta {

struct UsableCpus {
  int affinity = 1;             // CPUs of the calling thread's mask, at least 1
  std::optional<double> quota;  // CPUs' worth of time; nothing: no control group limits it

  // Threads that can compute all the time: the fewer of both, the quota rounded down, at least 1.
  int threads() const;
};

UsableCpus ReadUsableCpus();

// The smallest quota of the process's control group and of those around it: `cpu.max`, or version
// 1's cpu.cfs_quota_us and cpu.cfs_period_us. What cannot be read sets no limit.
std::optional<double> ReadCpuQuota(const ControlGroupFiles& files);

}  // namespace eta
