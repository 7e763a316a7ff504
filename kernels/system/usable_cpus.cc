#include "kernels/system/usable_cpus.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <thread>

namespace eta {
namespace {

// Microseconds of CPU time in a period of so many; version 1 spells "no limit" as -1.
std::optional<double> QuotaOf(const ControlGroup& group) {
  std::optional<int64_t> time;
  std::optional<int64_t> period;
  if (group.version_2) {
    std::ifstream file(group.folder + "cpu.max");
    time = ReadGroupNumber(file);
    period = ReadGroupNumber(file);
  } else {
    std::ifstream quota_file(group.folder + "cpu.cfs_quota_us");
    std::ifstream period_file(group.folder + "cpu.cfs_period_us");
    time = ReadGroupNumber(quota_file);
    period = ReadGroupNumber(period_file);
  }
  if (!time || !period || *time <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*time) / static_cast<double>(*period);
}

int CpusOfMask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

int UsableCpus::threads() const {
  if (!quota || *quota >= affinity) return affinity;
  return std::max(1, static_cast<int>(*quota));
}

UsableCpus ReadUsableCpus() {
  return {.affinity = CpusOfMask(), .quota = ReadCpuQuota({})};
}

std::optional<double> ReadCpuQuota(const ControlGroupFiles& files) {
  std::optional<double> smallest;
  for (const ControlGroup& group : OwnControlGroups(files, "cpu")) {
    const std::optional<double> quota = QuotaOf(group);
    if (quota && (!smallest || *quota < *smallest)) smallest = quota;
  }
  return smallest;
}

}  // namespace eta
