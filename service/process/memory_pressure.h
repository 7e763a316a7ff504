// How much of the memory that its control group allows the process uses, and what is done without
// because of it, before the kernel ends the process. Page cache that the kernel can drop at once
// does not count. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/base/threads/loop_thread.h"
#include "service/process/pressure_level.h"

namespace eta {

struct MemoryPressureOptions {
  double max_fraction = 0.95;  // of the limit, as PressureLevel takes it
  // Where control groups are mounted (version 2, or 1 with its controller `memory` below it), and
  // the file that names the process's own.
  std::string cgroup_root = "/sys/fs/cgroup";
  std::string own_cgroup_file = "/proc/self/cgroup";
  // Called when the level changes, by the thread that noticed, with the share used; may be empty.
  std::function<void(Pressure level, double used)> on_change;
};

class MemoryPressure {
 public:
  static constexpr std::chrono::milliseconds kPeriod{250};  // between two readings

  explicit MemoryPressure(MemoryPressureOptions options);
  ~MemoryPressure() { Stop(); }
  MemoryPressure(const MemoryPressure&) = delete;
  MemoryPressure& operator=(const MemoryPressure&) = delete;

  // Reads from here on. At every reading that is critical `relieve` is called; must not block.
  void Begin(std::function<void()> relieve);
  // Nothing is called any more.
  void Stop();
  // What the thread does each period.
  void Refresh();

  // kNone where no limit is set.
  Pressure level() const { return level_; }

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
  std::atomic<Pressure> level_ = Pressure::kNone;

  Mutex mutex_;
  PressureLevel levels_ GUARDED_BY(mutex_);
  std::function<void()> relieve_ GUARDED_BY(mutex_);
  std::optional<LoopThread> thread_;  // last: it uses the others
};

}  // namespace eta
