#include "service/stats/stats_watchers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "service/wire/store_status.h"

namespace eta {
namespace {

constexpr std::chrono::seconds kRetry{5};

absl::Status Full() {
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("as many calls watch as may (", StatsWatchers::kMax,
                                ", of one tenant ", StatsWatchers::kMaxOfTenant, ")"),
                   {.reason = "WATCHERS_FULL", .retry_after = kRetry});
}

}  // namespace

StatsWatchers::StatsWatchers() : thread_("stats_watchers", [this] { return TellDue(); }) {}

absl::Status StatsWatchers::Add(const std::shared_ptr<StatsWatcher>& watcher,
                                std::chrono::nanoseconds interval, const Tenant& tenant) {
  {
    const MutexLock lock(mutex_);
    if (closed_) return ServerDraining();
    const auto own = std::count_if(entries_.begin(), entries_.end(), [&](const auto& entry) {
      return entry.second.tenant == tenant;
    });
    if (entries_.size() >= kMax || own >= kMaxOfTenant) return Full();
    entries_.emplace(
        watcher.get(),
        Entry{.watcher = watcher, .interval = interval, .tenant = tenant, .due = Clock::now()});
  }
  thread_.Wake();
  return absl::OkStatus();
}

int StatsWatchers::watching() const {
  const MutexLock lock(mutex_);
  return static_cast<int>(entries_.size());
}

void StatsWatchers::Remove(const StatsWatcher* watcher) {
  std::shared_ptr<StatsWatcher> removed;  // goes without the lock
  const MutexLock lock(mutex_);
  const auto found = entries_.find(watcher);
  if (found == entries_.end()) return;
  removed = std::move(found->second.watcher);
  entries_.erase(found);
}

void StatsWatchers::Close() {
  Entries entries;
  {
    const MutexLock lock(mutex_);
    closed_ = true;
    entries.swap(entries_);
  }
  for (const auto& [key, entry] : entries) entry.watcher->OnEnd(ServerDraining());
}

Clock::time_point StatsWatchers::TellDue() {
  Clock::time_point next = LoopThread::kWhenWoken;
  std::vector<std::shared_ptr<StatsWatcher>> due;
  {
    const MutexLock lock(mutex_);
    const Clock::time_point now = Clock::now();
    for (auto& [key, entry] : entries_) {
      if (entry.due <= now) {
        due.push_back(entry.watcher);
        entry.due = std::max(entry.due + entry.interval, now + entry.interval / 2);
      }
      next = std::min(next, entry.due);
    }
  }
  for (const auto& watcher : due) watcher->OnDue();
  return next;
}

}  // namespace eta
