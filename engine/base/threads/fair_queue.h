// A queue that serves its owners round robin, and the oldest item of an owner first. Not
// thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/thread_annotations.h"

namespace eta {

template <typename T>
class FairQueue {
 public:
  void Push(const std::string& owner, T item) {
    const auto lane = Find(lanes_, owner);
    if (lane != lanes_.end()) return lane->items.push_back(std::move(item));
    Lane fresh{.owner = owner, .items = {}};
    fresh.items.push_back(std::move(item));
    lanes_.push_back(std::move(fresh));
  }

  // Of one that is not empty.
  T Pop() {
    Lane& lane = lanes_.front();
    T item = std::move(lane.items.front());
    lane.items.pop_front();
    if (lane.items.empty()) {
      lanes_.pop_front();
    } else {
      lanes_.splice(lanes_.end(), lanes_, lanes_.begin());
    }
    return item;
  }

  // Of the first owner that may have a turn; nothing if none may. The last one that is asked for is
  // the one. `may` may need the lock that the caller holds: as with Mutex::Wait.
  template <typename May>
  std::optional<T> PopOf(const May& may) NO_THREAD_SAFETY_ANALYSIS {
    for (auto lane = lanes_.begin(); lane != lanes_.end(); ++lane) {
      if (!may(lane->owner)) continue;
      lanes_.splice(lanes_.begin(), lanes_, lane);
      return Pop();
    }
    return std::nullopt;
  }

  bool empty() const { return lanes_.empty(); }
  size_t SizeOf(const std::string& owner) const {
    const auto lane = Find(lanes_, owner);
    return lane == lanes_.end() ? 0 : lane->items.size();
  }

 private:
  struct Lane {
    std::string owner;
    std::deque<T> items;
  };

  static auto Find(auto& lanes, const std::string& owner) {
    return std::find_if(lanes.begin(), lanes.end(),
                        [&](const Lane& lane) { return lane.owner == owner; });
  }

  std::list<Lane> lanes_;  // none empty; the next owner is first
};

// Whether an owner with `own` items waiting may add one, where `waiting` items wait in all and at
// most `most` may. An owner may have no more items than there are free places. So one owner alone
// fills at most half of the queue, and leaves room for the next.
inline bool HasRoom(size_t own, size_t waiting, size_t most) {
  return waiting < most && own < most - waiting;
}

}  // namespace eta
