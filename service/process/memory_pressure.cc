#include "service/process/memory_pressure.h"

#include <malloc.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

namespace eta {
namespace {

// Version 1 spells "no limit" as the largest multiple of a page.
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;  // "max"
  return number;
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

bool Contains(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == name) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

}  // namespace

// Lines of the file are ID:CONTROLLERS:PATH; version 2 has no controllers. In a container the path
// may be the host's, whose folders are not there: what is not there sets no limit.
MemoryPressure::MemoryPressure(MemoryPressureOptions options)
    : options_(std::move(options)), levels_(options_.max_fraction) {
  std::ifstream file(options_.own_cgroup_file);
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version_2 = controllers.empty();
    if (!version_2 && !Contains(controllers, "memory")) continue;
    const std::string root = options_.cgroup_root + (version_2 ? "" : "/memory");
    std::string path = line.substr(second + 1);
    while (true) {
      while (!path.empty() && path.back() == '/') path.pop_back();
      const std::string folder = root + path + "/";
      if (version_2) {
        groups_.push_back({folder + "memory.max", folder + "memory.current", folder + "memory.stat",
                           "inactive_file"});
      } else {
        groups_.push_back({folder + "memory.limit_in_bytes", folder + "memory.usage_in_bytes",
                           folder + "memory.stat", "total_inactive_file"});
      }
      if (path.empty()) break;
      const size_t parent = path.rfind('/');
      path.resize(parent == std::string::npos ? 0 : parent);
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
