// The WatchStats calls of a server: bounded in number, told one by one when their next snapshot is
// due, on a thread of this object, and ended together when the server has drained. Thread-safe.
//
// A call lasts for as long as its client likes, so that places do not come free by themselves:
// where none is left, the newest of the tenant that has most makes room for one of a tenant that
// has less.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "engine/request/request.h"

namespace eta {

class StatsWatcher {
 public:
  virtual ~StatsWatcher() = default;
  // A snapshot is due. Must not block.
  virtual void OnDue() = 0;
  // It ends with this: the server ends, or others have fewer places. OnDue may still come once.
  virtual void OnEnd(const absl::Status& status) = 0;
};

class StatsWatchers {
 public:
  static constexpr int kMax = 32;
  static constexpr int kMaxOfTenants = 24;  // all but the operators' together
  static constexpr int kMaxOfTenant = 8;

  StatsWatchers();
  ~StatsWatchers();
  StatsWatchers(const StatsWatchers&) = delete;
  StatsWatchers& operator=(const StatsWatchers&) = delete;

  // Due at once, then every `interval`; one that comes late is not made up for. `tenant` is whose
  // place it takes; unset: an operator's. RESOURCE_EXHAUSTED (WATCHERS_FULL), UNAVAILABLE
  // (DRAINING).
  absl::Status Add(const std::shared_ptr<StatsWatcher>& watcher, std::chrono::nanoseconds interval,
                   const std::optional<std::string>& tenant);
  // Ignored for one that is not there, or no more.
  void Remove(const StatsWatcher* watcher);

  // Ends all that are there; more are refused.
  void Close();

  int watching() const;

 private:
  struct Entry {
    std::shared_ptr<StatsWatcher> watcher;
    std::chrono::nanoseconds interval;
    std::optional<std::string> tenant;
    Clock::time_point due;
    int64_t number;  // ascending
  };
  using Entries = std::map<const StatsWatcher*, Entry>;

  void Run();
  // With mutex_ held: who has to go so that one of `tenant` may come. end(): nobody, there is room.
  // Absent: there is none.
  std::optional<Entries::iterator> MakeRoom(const std::optional<std::string>& tenant);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  Entries entries_;
  int64_t last_number_ = 0;
  bool closed_ = false;
  bool stop_ = false;

  std::thread thread_;  // last: it uses the others
};

}  // namespace eta
