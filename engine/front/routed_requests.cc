#include "engine/front/routed_requests.h"

namespace eta {

uint64_t RoutedRequests::Open() {
  const MutexLock lock(mutex_);
  entries_.try_emplace(last_handle_ + 1);
  return ++last_handle_;
}

bool RoutedRequests::Enter(uint64_t handle, int32_t moves, Place place) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(handle);
  if (found == entries_.end() || moves < found->second.moves) return false;
  found->second.place = place;
  found->second.moves = moves;
  return found->second.cancelled;
}

std::optional<RoutedRequests::Place> RoutedRequests::Cancel(uint64_t handle) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(handle);
  if (found == entries_.end()) return std::nullopt;
  found->second.cancelled = true;
  return found->second.place;
}

void RoutedRequests::Close(uint64_t handle) {
  const MutexLock lock(mutex_);
  entries_.erase(handle);
}

}  // namespace eta
