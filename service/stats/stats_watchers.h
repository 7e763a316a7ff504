// The WatchStats calls of a server: bounded in number, told one by one when their next snapshot is
// due, on a thread of this object, and ended together when the server has drained. Thread-safe.
//
// A call lasts for as long as its client likes. So all calls together are bounded, and those of one
// tenant are bounded far below that.
#pragma once

#include <chrono>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/base/mutex.h"
#include "engine/base/tenant.h"
#include "engine/base/threads/loop_thread.h"

namespace eta {

class StatsWatcher {
 public:
  virtual ~StatsWatcher() = default;
  // A snapshot is due. Must not block.
  virtual void OnDue() = 0;
  // It ends with this, since the server ends. OnDue may still come once.
  virtual void OnEnd(const absl::Status& status) = 0;
};

class StatsWatchers {
 public:
  static constexpr int kMax = 32;
  static constexpr int kMaxOfTenant = 8;

  StatsWatchers();
  ~StatsWatchers() { Close(); }
  StatsWatchers(const StatsWatchers&) = delete;
  StatsWatchers& operator=(const StatsWatchers&) = delete;

  // Due at once, then every `interval`; one that comes late is not made up for. `tenant` is the
  // caller's. RESOURCE_EXHAUSTED (WATCHERS_FULL), UNAVAILABLE (DRAINING).
  absl::Status Add(const std::shared_ptr<StatsWatcher>& watcher, std::chrono::nanoseconds interval,
                   const Tenant& tenant);
  // Ignored for one that is not there, or no more.
  void Remove(const StatsWatcher* watcher);

  // Ends all that are there; more are refused.
  void Close();

  int watching() const;

 private:
  struct Entry {
    std::shared_ptr<StatsWatcher> watcher;
    std::chrono::nanoseconds interval;
    Tenant tenant;
    Clock::time_point due;
  };
  using Entries = std::map<const StatsWatcher*, Entry>;

  // Tells those that are due; when the next one is.
  Clock::time_point TellDue();

  mutable Mutex mutex_;
  Entries entries_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;

  LoopThread thread_;  // last: it uses the others
};

}  // namespace eta
