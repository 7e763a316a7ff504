#include "service/calls/live_streams.h"

#include <vector>

namespace eta {

void LiveStreams::Place::GiveBack() {
  LiveStreams* const streams = std::exchange(streams_, nullptr);
  if (streams == nullptr) return;
  const std::lock_guard lock(streams->mutex_);
  streams->streams_.erase(id_);
}

LiveStreams::Place LiveStreams::Add(std::weak_ptr<LiveStream> stream) {
  const std::lock_guard lock(mutex_);
  streams_[++last_id_] = std::move(stream);
  return Place(*this, last_id_);
}

// A stream that is asked here may be the last to be held, and its end gives back its place: so it
// is let go of outside of the lock.
bool LiveStreams::EndCostliest() {
  std::vector<std::shared_ptr<LiveStream>> streams;
  {
    const std::lock_guard lock(mutex_);
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
  const std::lock_guard lock(mutex_);
  ++ended_;
  return true;
}

int64_t LiveStreams::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

}  // namespace eta
