#include "service/calls/live_streams.h"

#include <utility>
#include <vector>

namespace eta {

Lease LiveStreams::Add(std::weak_ptr<LiveStream> stream) {
  const MutexLock lock(mutex_);
  const int64_t id = ++last_id_;
  streams_[id] = std::move(stream);
  return Lease([this, id] { Remove(id); });
}

void LiveStreams::Remove(int64_t id) {
  const MutexLock lock(mutex_);
  streams_.erase(id);
}

// A stream that is asked here may be the last to be held, and its end gives back its place: so it
// is let go of outside of the lock.
bool LiveStreams::EndCostliest() {
  std::vector<std::shared_ptr<LiveStream>> streams;
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, weak] : streams_) {
      if (auto stream = weak.lock()) streams.push_back(std::move(stream));
    }
  }
  LiveStream* costliest = nullptr;
  int64_t most = 0;
  for (const auto& stream : streams) {
    const int64_t tokens = stream->kv_tokens();
    if (tokens > most) {
      most = tokens;
      costliest = stream.get();
    }
  }
  if (costliest == nullptr) return false;
  costliest->EndForMemory();
  const MutexLock lock(mutex_);
  ++ended_;
  return true;
}

int64_t LiveStreams::ended() const {
  const MutexLock lock(mutex_);
  return ended_;
}

}  // namespace eta
