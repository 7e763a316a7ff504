// The readers of a KvEventLog: each begins with what is cached, or with the number of a batch, and
// is told on a thread of the feed when there is more. One that falls behind what the log keeps is
// let go, and nobody waits for it.
//
//   auto subscription = *feed.Subscribe(0, [weak] { if (auto self = weak.lock()) self->OnMore();
//   }); while (true) {
//     ASSIGN_OR_RETURN(const KvEventBatchPtr batch, subscription->Next());
//     if (batch == nullptr) break;  // the wake comes
//     ...
//   }
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/base/threads/loop_thread.h"
#include "engine/batching/kv_events/kv_event_log.h"

namespace eta {

class KvEventFeed;

// Not thread-safe: one reader's. It must not outlive its feed.
class KvEventSubscription {
 public:
  ~KvEventSubscription();
  KvEventSubscription(const KvEventSubscription&) = delete;
  KvEventSubscription& operator=(const KvEventSubscription&) = delete;

  // The next batch; null: there is none now, and the wake of Subscribe comes when there is.
  // DATA_LOSS once the reader was so slow that the log has dropped what comes next; what Close
  // said.
  absl::StatusOr<KvEventBatchPtr> Next();

 private:
  friend class KvEventFeed;
  struct Reader {
    explicit Reader(std::function<void()> told) : wake(std::move(told)) {}
    const std::function<void()> wake;
    std::atomic<bool> waits = false;  // it has seen that there is nothing
  };
  KvEventSubscription(KvEventFeed& feed, std::shared_ptr<Reader> reader)
      : feed_(feed), reader_(std::move(reader)) {}
  void Begin(uint64_t start);
  // What is cached, and then what follows. `anew`: the reader is to forget what it knew.
  void BeginWithSnapshot(bool anew);

  KvEventFeed& feed_;
  const std::shared_ptr<Reader> reader_;
  std::deque<KvEventBatchPtr> read_;  // to be given out
  uint64_t next_ = 0;                 // the number of the batch after those
};

// Thread-safe.
class KvEventFeed {
 public:
  static constexpr size_t kMaxSubscriptions = 32;
  static constexpr size_t kMaxPartTokens = size_t{1} << 18;  // of one part of a snapshot

  KvEventFeed();
  ~KvEventFeed();
  KvEventFeed(const KvEventFeed&) = delete;
  KvEventFeed& operator=(const KvEventFeed&) = delete;

  // For EngineOptions::kv_events.
  const std::shared_ptr<KvEventLog>& log() const { return log_; }

  // From the batch `start` on, that one included; 0: a snapshot, if anything is cached, and what
  // follows. Where the log does not have batch `start`, since it is old or another process's, the
  // snapshot is there too, behind a kCleared.
  //
  // `wake` is called on the feed's thread. It must not block; it may come without news, and once
  // after the subscription has gone, so it holds what it needs. RESOURCE_EXHAUSTED (WATCHERS_FULL);
  // what Close said.
  absl::StatusOr<std::unique_ptr<KvEventSubscription>> Subscribe(uint64_t start,
                                                                 std::function<void()> wake)
      EXCLUDES(mutex_);
  // Ends all with `why`, an error; more are refused with it.
  void Close(absl::Status why) EXCLUDES(mutex_);

 private:
  friend class KvEventSubscription;
  using Reader = KvEventSubscription::Reader;

  absl::Status closed() const EXCLUDES(mutex_);
  void Remove(const Reader* reader) EXCLUDES(mutex_);
  Clock::time_point TellReaders() EXCLUDES(mutex_);

  const std::shared_ptr<KvEventLog> log_ = std::make_shared<KvEventLog>();
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<Reader>> readers_ GUARDED_BY(mutex_);
  absl::Status closed_ GUARDED_BY(mutex_);
  LoopThread thread_;  // last: it uses the others
};

}  // namespace eta
