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

StatsWatchers::StatsWatchers() : thread_([this] { Run(); }) {}

StatsWatchers::~StatsWatchers() {
  Close();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::Status StatsWatchers::Add(const std::shared_ptr<StatsWatcher>& watcher,
                                std::chrono::nanoseconds interval, const Tenant& tenant) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return ServerDraining();
    const auto own = std::count_if(entries_.begin(), entries_.end(), [&](const auto& entry) {
      return entry.second.tenant == tenant;
    });
    if (entries_.size() >= kMax || own >= kMaxOfTenant) return Full();
    entries_.emplace(
        watcher.get(),
        Entry{.watcher = watcher, .interval = interval, .tenant = tenant, .due = Clock::now()});
  }
  changed_.notify_all();
  return absl::OkStatus();
}

int StatsWatchers::watching() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(entries_.size());
}

void StatsWatchers::Remove(const StatsWatcher* watcher) {
  std::shared_ptr<StatsWatcher> removed;  // goes without the lock
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(watcher);
  if (found == entries_.end()) return;
  removed = std::move(found->second.watcher);
  entries_.erase(found);
}

void StatsWatchers::Close() {
  Entries entries;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    entries.swap(entries_);
  }
  for (const auto& [key, entry] : entries) entry.watcher->OnEnd(ServerDraining());
}

void StatsWatchers::Run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const Clock::time_point now = Clock::now();
    Clock::time_point next = Clock::time_point::max();
    std::vector<std::shared_ptr<StatsWatcher>> due;
    for (auto& [key, entry] : entries_) {
      if (entry.due <= now) {
        due.push_back(entry.watcher);
        entry.due = std::max(entry.due + entry.interval, now + entry.interval / 2);
      }
      next = std::min(next, entry.due);
    }
    if (!due.empty()) {
      lock.unlock();
      for (const auto& watcher : due) watcher->OnDue();
      due.clear();
      lock.lock();
    } else if (next == Clock::time_point::max()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, next);
    }
  }
}

}  // namespace eta
