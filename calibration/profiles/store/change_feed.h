// The watchers of a store, and the thread that looks for changes.
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

  std::unique_ptr<ProfileWatch> Watch(ProfileWatcher watcher);
  void Tell(const ProfileChange& change);

 private:
  struct Watchers;
  class Entry;

  std::shared_ptr<Watchers> watchers_;  // shared with watches that outlive the store
};

// Calls `look` every `interval`, and at once when `news()` (a file descriptor, or -1) has something
// to read, until it is destroyed. Both are called on its thread.
class PollThread {
 public:
  PollThread(std::chrono::milliseconds interval, std::function<void()> look,
             std::function<int()> news);
  ~PollThread();
  PollThread(const PollThread&) = delete;
  PollThread& operator=(const PollThread&) = delete;

 private:
  int stop_event_;
  std::thread thread_;
};

}  // namespace eta
