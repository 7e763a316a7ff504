// The messages of one stream on their way to its client, and whose move it is.
//
// Whoever makes messages pushes them, from any thread, and is never held up. Whoever writes asks
// for the next move, carries it out, and says when it is done: one move at a time, whatever threads
// they come from. A message that cannot be written yet may be merged into the one before it, so
// that a slow reader gets fewer of them. The queue drops nothing: a maker that finds it full stops
// making. Thread-safe; knows nothing of gRPC.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/base/mutex.h"

namespace eta {

template <typename Message>
class OutboundQueue {
 public:
  // What may wait before the queue is full, and the engine is asked to pause the request.
  struct Bounds {
    int messages = 16;
    size_t bytes = 256 * 1024;
  };
  // Makes one message of two that wait behind one another; false: they stay two.
  using Merge = std::function<bool(Message& last, const Message& next)>;

  // Either a message to write or the status to finish with.
  struct Move {
    std::optional<Message> message;
    std::optional<absl::Status> end;
  };

  explicit OutboundQueue(Merge merge) : OutboundQueue(std::move(merge), Bounds()) {}
  OutboundQueue(Merge merge, const Bounds& bounds) : merge_(std::move(merge)), bounds_(bounds) {}

  // True: somebody must ask for a move, and Posted says that it was told so. Without effect once
  // the queue is closed or broken. `bytes`: of the message.
  [[nodiscard]] bool Push(Message message, size_t bytes);
  // Whoever was told to ask for a move does so now; the next Push may tell somebody again.
  void Posted();

  // Nothing is pushed any more. True: something waits or is being written.
  [[nodiscard]] bool Close();
  // After Close: what the stream ends with once all is written. Call once, then ask for a move.
  void SetEnd(const absl::Status& status);

  // The next move, which is the caller's until Written; none while another is under way or there is
  // nothing to do. The end is the last.
  [[nodiscard]] std::optional<Move> Next();
  // False: the client can no longer be written to, and what waits is dropped.
  void Written(bool ok);

  // As much waits as may.
  bool Full() const;
  // A move has been under way for longer than that.
  bool Stalled(std::chrono::milliseconds patience) const;

 private:
  struct Entry {
    Message message;
    int messages = 0;  // that were merged into it
    size_t bytes = 0;
  };

  const Merge merge_;
  const Bounds bounds_;

  mutable Mutex mutex_;
  std::deque<Entry> entries_ GUARDED_BY(mutex_);
  int messages_ GUARDED_BY(mutex_) = 0;
  size_t bytes_ GUARDED_BY(mutex_) = 0;
  bool posted_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;
  bool broken_ GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ GUARDED_BY(mutex_);
  // When the move that is under way began.
  std::optional<Clock::time_point> busy_since_ GUARDED_BY(mutex_);
};

template <typename Message>
bool OutboundQueue<Message>::Push(Message message, size_t bytes) {
  const MutexLock lock(mutex_);
  if (broken_ || closed_) return false;
  if (entries_.empty() || !merge_(entries_.back().message, message)) {
    entries_.push_back({.message = std::move(message)});
  }
  entries_.back().messages += 1;
  entries_.back().bytes += bytes;
  messages_ += 1;
  bytes_ += bytes;
  if (busy_since_) return false;  // whoever writes comes back
  return !std::exchange(posted_, true);
}

template <typename Message>
void OutboundQueue<Message>::Posted() {
  const MutexLock lock(mutex_);
  posted_ = false;
}

template <typename Message>
bool OutboundQueue<Message>::Close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  return busy_since_.has_value() || !entries_.empty();
}

template <typename Message>
void OutboundQueue<Message>::SetEnd(const absl::Status& status) {
  const MutexLock lock(mutex_);
  end_ = status;
}

template <typename Message>
std::optional<typename OutboundQueue<Message>::Move> OutboundQueue<Message>::Next() {
  const MutexLock lock(mutex_);
  if (busy_since_) return std::nullopt;
  Move move;
  if (!entries_.empty()) {
    Entry& first = entries_.front();
    messages_ -= first.messages;
    bytes_ -= first.bytes;
    move.message = std::move(first.message);
    entries_.pop_front();
  } else if (end_) {
    move.end = std::exchange(end_, std::nullopt);
  } else {
    return std::nullopt;
  }
  busy_since_ = Clock::now();
  return move;
}

template <typename Message>
void OutboundQueue<Message>::Written(bool ok) {
  const MutexLock lock(mutex_);
  busy_since_.reset();
  if (ok) return;
  broken_ = true;
  entries_.clear();
  messages_ = 0;
  bytes_ = 0;
}

template <typename Message>
bool OutboundQueue<Message>::Full() const {
  const MutexLock lock(mutex_);
  return messages_ >= bounds_.messages || bytes_ >= bounds_.bytes;
}

template <typename Message>
bool OutboundQueue<Message>::Stalled(std::chrono::milliseconds patience) const {
  const MutexLock lock(mutex_);
  return busy_since_ && Clock::now() - *busy_since_ > patience;
}

}  // namespace eta
