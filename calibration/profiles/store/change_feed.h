// The watchers of a store, and the thread that polls for changes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "calibration/profiles/profile_store.h"

namespace eta {

class ChangeFeed {
 public:
  ChangeFeed();

  Lease Watch(ProfileWatcher watcher);
  void Tell(const ProfileChange& change);

 private:
  struct Watchers;

  std::shared_ptr<Watchers> watchers_;  // shared with leases that outlive the store
};

// Calls `poll_store` every `interval`, and at once when `news()` (a file descriptor, or -1) has
// something to read, until it is destroyed. Both are called on its thread. No LoopThread, since it
// waits for a descriptor.
class PollThread {
 public:
  PollThread(std::chrono::milliseconds interval, std::function<void()> poll_store,
             std::function<int()> news);
  ~PollThread();
  PollThread(const PollThread&) = delete;
  PollThread& operator=(const PollThread&) = delete;

 private:
  int stop_event_;
  std::thread thread_;
};

}  // namespace eta
