// The server's log. Events become lines of standard error, which a thread of its own writes.
//
// Write never waits. An event that does not fit in the queue is dropped and counted, and the log
// reports this once it can write again. Events that must leave a trace have room of their own, so
// that no flood of calls, and none of denials, pushes out the line of a change. A stalled reader of
// standard error holds up nothing but the log.
//
// It is our own code, and small: the log of Debian 12's abseil (20220623) is not public yet, and no
// available library does all of the above.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "engine/base/mutex.h"
#include "engine/base/threads/loop_thread.h"
#include "service/log/log_event.h"

namespace eta {

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kJson;
  int fd = -1;                // where lines go; negative: nowhere
  size_t max_waiting = 4096;  // of the usual rank; each higher rank has room for a quarter more
  std::chrono::milliseconds last_wait{1000};  // the last wait for a stalled reader, at the end
};

// Thread-safe.
class Log {
 public:
  explicit Log(const LogOptions& options);
  // Writes the waiting events, as far as somebody reads them.
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // A log that writes nowhere.
  static Log& Nowhere();

  void Write(LogEvent event);

  // Events below the level are not written.
  LogLevel level() const { return level_; }
  void SetLevel(LogLevel level) { level_ = level; }
  bool Writes(LogLevel level) const { return options_.fd >= 0 && level >= level_; }

  // The events that were lost, of all ranks.
  int64_t dropped() const { return dropped_ + dropped_audit_; }

 private:
  void WriteWaiting();
  // False: the log has ended and nobody reads.
  bool WriteLine(std::string line);
  bool AwaitRoom();
  size_t RoomFor(LogRank rank) const;

  const LogOptions options_;
  std::atomic<LogLevel> level_;
  std::atomic<int64_t> dropped_ = 0;        // of the usual rank
  std::atomic<int64_t> dropped_audit_ = 0;  // of the higher ranks

  // Dropped events that were reported. Only the writer uses these: the thread, then the destructor.
  int64_t told_ = 0;
  int64_t told_audit_ = 0;

  Mutex mutex_;
  std::deque<LogEvent> waiting_ GUARDED_BY(mutex_);
  // Set when the log ends.
  std::optional<Clock::time_point> last_deadline_ GUARDED_BY(mutex_);

  std::optional<LoopThread> thread_;  // last: it uses the others
};

}  // namespace eta
