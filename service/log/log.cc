#include "service/log/log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "kernels/system/failpoint.h"

namespace eta {
namespace {

constexpr int kPollMs = 50;
constexpr size_t kPipeChunk = 4096;  // PIPE_BUF: a pipe that is ready takes this much at once

}  // namespace

Log::Log(const LogOptions& options) : options_(options), level_(options.level) {
  if (options_.fd < 0) return;
  thread_.emplace("log", [this] {
    WriteWaiting();
    return LoopThread::kWhenWoken;
  });
}

Log::~Log() {
  if (!thread_) return;
  {
    const MutexLock lock(mutex_);
    last_deadline_ = Clock::now() + options_.last_wait;
  }
  thread_->Stop();
  WriteWaiting();
}

Log& Log::Nowhere() {
  static Log log{LogOptions()};
  return log;
}

void Log::Write(LogEvent event) {
  const LogRank rank = event.rank();
  const bool usual = rank == LogRank::kUsual;
  if (options_.fd < 0 || (usual && !Writes(event.level()))) return;
  bool first;
  {
    const MutexLock lock(mutex_);
    if (waiting_.size() >= RoomFor(rank)) {
      ++(usual ? dropped_ : dropped_audit_);
      return;
    }
    first = waiting_.empty();
    waiting_.push_back(std::move(event));
  }
  if (first) thread_->Wake();  // else whoever brought the first has done so
}

size_t Log::RoomFor(LogRank rank) const {
  return options_.max_waiting + static_cast<size_t>(rank) * options_.max_waiting / 4;
}

void Log::WriteWaiting() {
  std::deque<LogEvent> events;
  while (true) {
    {
      const MutexLock lock(mutex_);
      events.swap(waiting_);
    }
    if (events.empty()) return;
    for (const LogEvent& event : events) {
      if (!WriteLine(event.Line(options_.format))) return;
    }
    events.clear();
    const int64_t dropped = dropped_, audit = dropped_audit_;
    if (const int64_t count = dropped - told_ + audit - told_audit_; count > 0) {
      LogEvent lost(LogLevel::kWarning, "log_dropped",
                    "the log could not keep up: " + std::to_string(count) + " events lost");
      lost.Add("events", count).Add("audit_events", audit - told_audit_);
      told_ = dropped;
      told_audit_ = audit;
      if (!WriteLine(lost.Line(options_.format))) return;
    }
  }
}

bool Log::WriteLine(std::string line) {
  if (ETA_FAILPOINT(kLogWrite)) return true;  // as with a full disk
  line += '\n';
  size_t written = 0;
  while (written < line.size()) {
    if (!AwaitRoom()) return false;
    const ssize_t n =
        write(options_.fd, line.data() + written, std::min(line.size() - written, kPipeChunk));
    if (n >= 0) {
      written += static_cast<size_t>(n);
    } else if (errno != EINTR && errno != EAGAIN) {
      return true;  // closed, or its disk is full; a later line may get through
    }
  }
  return true;
}

bool Log::AwaitRoom() {
  while (true) {
    pollfd ready{.fd = options_.fd, .events = POLLOUT, .revents = 0};
    if (poll(&ready, 1, kPollMs) > 0) return true;
    const MutexLock lock(mutex_);
    if (last_deadline_ && Clock::now() >= *last_deadline_) return false;
  }
}

}  // namespace eta
