// Where the requests and passes of a router are: on which engine, under which handle there. A
// request that its engine gives back, because the device is lost, goes on elsewhere under the
// router's handle. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "engine/base/mutex.h"

namespace eta {

class RoutedRequests {
 public:
  struct Place {
    size_t engine = 0;
    uint64_t handle = 0;
  };

  // A handle that nothing else has; it has no place yet.
  uint64_t Open() EXCLUDES(mutex_);
  // An engine has it, after so many moves. Whoever is late, because a later move was entered
  // already or the request has ended, changes nothing. True: it was cancelled while it was nowhere,
  // so that it must be cancelled in this place.
  [[nodiscard]] bool Enter(uint64_t handle, int32_t moves, Place place) EXCLUDES(mutex_);
  // Notes that it is cancelled. Where it is now; nothing if it is nowhere yet, or has ended.
  std::optional<Place> Cancel(uint64_t handle) EXCLUDES(mutex_);
  // It has ended.
  void Close(uint64_t handle) EXCLUDES(mutex_);

 private:
  struct Entry {
    std::optional<Place> place;
    int32_t moves = 0;
    bool cancelled = false;
  };

  Mutex mutex_;
  std::unordered_map<uint64_t, Entry> entries_ GUARDED_BY(mutex_);
  uint64_t last_handle_ GUARDED_BY(mutex_) = 0;
};

}  // namespace eta
