// The WatchStats calls of a server: bounded in number, told one by one when their next snapshot is
// due, on a thread of this object, and ended together when the server has drained. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "engine/request.h"

namespace eta {

class StatsWatcher {
 public:
  virtual ~StatsWatcher() = default;
  // A snapshot is due. Must not block.
  virtual void OnDue() = 0;
  // The server ends; OnDue may still come once.
  virtual void OnClose() = 0;
};

class StatsWatchers {
 public:
  static constexpr int kMax = 32;
  static constexpr int kMaxOfTenant = 8;

  StatsWatchers();
  ~StatsWatchers();
  StatsWatchers(const StatsWatchers&) = delete;
  StatsWatchers& operator=(const StatsWatchers&) = delete;

  // Due at once, then every `interval`; one that comes late is not made up for. `tenant` counts
  // against kMaxOfTenant, if it is set. RESOURCE_EXHAUSTED (WATCHERS_FULL), UNAVAILABLE (DRAINING).
  absl::Status Add(const std::shared_ptr<StatsWatcher>& watcher, std::chrono::nanoseconds interval,
                   const std::optional<std::string>& tenant);
  // Ignored for one that is not there, or no more.
  void Remove(const StatsWatcher* watcher);

  // Ends all that are there; more are refused.
  void Close();

 private:
  struct Entry {
    std::shared_ptr<StatsWatcher> watcher;
    std::chrono::nanoseconds interval;
    std::optional<std::string> tenant;
    Clock::time_point due;
  };

  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::map<const StatsWatcher*, Entry> entries_;
  bool closed_ = false;
  bool stop_ = false;

  std::thread thread_;  // last: it uses the others
};

}  // namespace eta
