// The events of an engine's prefix caches: numbered, kept for a while, and a copy of what is cached
// now.
//
// Each device's step thread adds its changes through a KvEventRecorder. A block that several
// devices hold is stored when the first one stores it, and removed when the last one removes it:
// the engine itself sends a request to the device that has its prompt.
//
// Memory: the copy holds each cached block's tokens once. Of what was, the newest kMaxBatches
// batches are kept, and no more than kMaxEvents events.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/batching/kv_events/kv_event.h"

namespace eta {

// Thread-safe. A step thread never waits here for a reader: see TryAppend.
class KvEventLog {
 public:
  static constexpr size_t kMaxBatches = 10'000;
  static constexpr size_t kMaxEvents = size_t{1} << 16;

  // What a device says of itself: not yet whether another one has the block too. Of a removal only
  // hash and group count.
  struct Change {
    KvEvent::Kind kind;
    int64_t hash;
    int32_t group = 0;
    KvBlockPtr block;
  };

  KvEventLog() = default;
  KvEventLog(const KvEventLog&) = delete;
  KvEventLog& operator=(const KvEventLog&) = delete;

  // Takes all changes as one batch. kCleared comes after the removals of all blocks of its device.
  void Append(std::vector<Change>& changes) EXCLUDES(mutex_);
  // The same, or false and nothing has changed: somebody else is at the log now.
  bool TryAppend(std::vector<Change>& changes) EXCLUDES(mutex_);

  // The number of the newest batch; 0 before the first.
  uint64_t last_sequence() const EXCLUDES(mutex_);
  // The batches from `sequence` on, at most `max`; none if that is the next one to come. DATA_LOSS
  // if it is not kept any more, or lies further ahead.
  absl::StatusOr<std::vector<KvEventBatchPtr>> Read(uint64_t sequence, size_t max) const
      EXCLUDES(mutex_);
  // Called after each batch, with the log locked, by the thread that appends; null: nobody is.
  void OnAppend(std::function<void()> told) EXCLUDES(mutex_);

  struct Snapshot {
    uint64_t sequence = 0;           // of the newest batch that is in it
    std::vector<KvBlockPtr> blocks;  // parents first
  };
  Snapshot TakeSnapshot() const EXCLUDES(mutex_);

 private:
  // A hash stands for a block in each group of layers.
  struct Name {
    int64_t hash = 0;
    int32_t group = 0;
    bool operator==(const Name&) const = default;

    struct Hash {
      size_t operator()(const Name& name) const {
        return static_cast<size_t>(name.hash) + static_cast<size_t>(name.group);
      }
    };
  };
  struct Live {
    KvBlockPtr block;
    int32_t holders = 0;  // devices
  };

  void Apply(std::vector<Change>& changes) REQUIRES(mutex_);
  void Apply(Change& change, std::vector<KvEvent>& events) REQUIRES(mutex_);
  void Keep(KvEventBatch batch) REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::unordered_map<Name, Live, Name::Hash> live_ GUARDED_BY(mutex_);
  std::deque<KvEventBatchPtr> kept_ GUARDED_BY(mutex_);
  size_t kept_events_ GUARDED_BY(mutex_) = 0;
  uint64_t last_sequence_ GUARDED_BY(mutex_) = 0;
  std::function<void()> told_ GUARDED_BY(mutex_);
};

}  // namespace eta
