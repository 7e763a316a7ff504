// Whether the process is about to use up the memory that its control group allows, before the
// kernel ends it: new calls are then refused while running ones go on. Page cache that the kernel
// can drop at once does not count. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "engine/request.h"

namespace eta {

struct MemoryPressureOptions {
  double max_fraction = 0.95;  // of the limit
  // Where control groups are mounted (version 2, or 1 with its controller `memory` below it), and
  // the file that names the process's own.
  std::string cgroup_root = "/sys/fs/cgroup";
  std::string own_cgroup_file = "/proc/self/cgroup";
  // Called when the answer changes, by the thread that noticed; may be empty.
  std::function<void(bool high)> on_change;
};

class MemoryPressure {
 public:
  static constexpr std::chrono::milliseconds kPeriod{100};  // between two looks at the files

  explicit MemoryPressure(MemoryPressureOptions options);

  // False where no limit is set. Reads files at most once per kPeriod; never blocks on another
  // thread that does.
  bool High(Clock::time_point now = Clock::now());

  // The largest share used of any limit that applies: one of the process's own group or of those
  // around it. 0 without a limit.
  double FractionUsed() const;

 private:
  struct Files {
    std::string limit;
    std::string usage;
    std::string statistics;
    std::string droppable;  // key in `statistics`
  };

  const MemoryPressureOptions options_;
  std::vector<Files> groups_;
  std::atomic<bool> high_ = false;
  std::mutex mutex_;
  Clock::time_point looked_{};  // guarded by mutex_
};

}  // namespace eta
