// The answers that are being made, so that the one that holds the most can be ended when memory
// runs out. Thread-safe; must outlive the leases that it gave out.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "engine/base/lease.h"
#include "engine/base/mutex.h"

namespace eta {

class LiveStream {
 public:
  virtual ~LiveStream() = default;
  // Tokens in the KV cache; 0: it has none yet, or is ending.
  virtual int64_t kv_tokens() const = 0;
  // Ends it with RESOURCE_EXHAUSTED (MEMORY_PRESSURE), soon; must not block.
  virtual void EndForMemory() = 0;
};

class LiveStreams {
 public:
  // A stream's place among them.
  Lease Add(std::weak_ptr<LiveStream> stream);

  // Ends the stream that holds the most tokens; false if none holds any.
  bool EndCostliest();
  // How many it has ended.
  int64_t ended() const;

 private:
  void Remove(int64_t id);

  mutable Mutex mutex_;
  std::map<int64_t, std::weak_ptr<LiveStream>> streams_ GUARDED_BY(mutex_);
  int64_t last_id_ GUARDED_BY(mutex_) = 0;
  int64_t ended_ GUARDED_BY(mutex_) = 0;
};

}  // namespace eta
