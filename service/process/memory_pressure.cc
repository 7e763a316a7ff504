#include "service/process/memory_pressure.h"

#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <utility>

#include "kernels/system/control_groups.h"

namespace eta {
namespace {

// Version 1 spells "no limit" as the largest multiple of a page.
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  return ReadGroupNumber(file);
}

int64_t ReadStatistic(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  int64_t value = 0;
  while (file >> name >> value) {
    if (name == key) return value;
  }
  return 0;
}

}  // namespace

MemoryPressure::MemoryPressure(MemoryPressureOptions options)
    : options_(std::move(options)), levels_(options_.max_fraction) {
  const ControlGroupFiles files = {options_.cgroup_root, options_.own_cgroup_file};
  for (const auto& [folder, version_2] : OwnControlGroups(files, "memory")) {
    if (version_2) {
      groups_.push_back({folder + "memory.max", folder + "memory.current", folder + "memory.stat",
                         "inactive_file"});
    } else {
      groups_.push_back({folder + "memory.limit_in_bytes", folder + "memory.usage_in_bytes",
                         folder + "memory.stat", "total_inactive_file"});
    }
  }
  std::erase_if(groups_, [](const Files& group) { return !ReadNumber(group.usage); });
}

void MemoryPressure::Begin(std::function<void()> relieve) {
  {
    const MutexLock lock(mutex_);
    relieve_ = std::move(relieve);
  }
  Refresh();
  thread_.emplace("memory_pressure", kPeriod, [this] { Refresh(); });
}

void MemoryPressure::Stop() {
  if (thread_) thread_->Stop();
}

void MemoryPressure::Refresh() {
  const MutexLock lock(mutex_);
  const Pressure before = level_;
  double used = FractionUsed();
  Pressure now = levels_.Update(used);
  // What was freed may still be the allocator's: before anything is done without, it gives that
  // back, and at every critical reading, where an answer ended since the last one.
  if (now > before || now == Pressure::kCritical) {
    malloc_trim(0);
    used = FractionUsed();
    now = levels_.Update(used);
  }
  level_ = now;
  if (now != before && options_.on_change) options_.on_change(now, used);
  if (now == Pressure::kCritical && relieve_) relieve_();
}

double MemoryPressure::FractionUsed() const {
  double fraction = 0.0;
  for (const Files& group : groups_) {
    const std::optional<int64_t> limit = ReadNumber(group.limit);
    const std::optional<int64_t> usage = ReadNumber(group.usage);
    if (!limit || !usage || *limit <= 0 || *limit >= kNoLimit) continue;
    const int64_t used = *usage - ReadStatistic(group.statistics, group.droppable);
    fraction = std::max(fraction, static_cast<double>(used) / static_cast<double>(*limit));
  }
  return fraction;
}

}  // namespace eta
