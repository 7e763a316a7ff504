// The answers that are being made, so that the one that holds the most can be ended when memory
// runs out. Thread-safe; must outlive the places that it gave out.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

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
  // A stream's place, given back when it is destroyed.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept
        : streams_(std::exchange(other.streams_, nullptr)), id_(other.id_) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(streams_, other.streams_);
      std::swap(id_, other.id_);
      return *this;
    }
    ~Place() { GiveBack(); }

    void GiveBack();

   private:
    friend class LiveStreams;
    Place(LiveStreams& streams, int64_t id) : streams_(&streams), id_(id) {}

    LiveStreams* streams_ = nullptr;
    int64_t id_ = 0;
  };

  Place Add(std::weak_ptr<LiveStream> stream);

  // Ends the stream that holds the most tokens; false if none holds any.
  bool EndCostliest();
  // How many it has ended.
  int64_t ended() const;

 private:
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::map<int64_t, std::weak_ptr<LiveStream>> streams_;
  int64_t last_id_ = 0;
  int64_t ended_ = 0;
};

}  // namespace eta
