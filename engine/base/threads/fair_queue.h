// What waits for its turn: owners take turns, and of one owner the oldest is first. Not
// thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <list>
#include <string>
#include <utility>

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

  std::list<Lane> lanes_;  // none empty, in the order of their turns
};

// Whether one more of an owner who has `own` waiting may wait, where `waiting` do and `most` may:
// no more of one owner's than places are free, half of them at most, so that whoever floods leaves
// room for the next.
inline bool HasRoom(size_t own, size_t waiting, size_t most) {
  return waiting < most && own < most - waiting;
}

}  // namespace eta
