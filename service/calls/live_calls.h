// How many calls a service has in flight, so that what they use is not taken away under them.
#pragma once

#include <condition_variable>
#include <mutex>

#include "engine/request/request.h"

namespace eta {

class LiveCalls {
 public:
  void Begin() {
    const std::lock_guard lock(mutex_);
    ++count_;
  }
  void End() {
    // Notified under the lock: whoever waits may destroy this object as soon as it has the lock.
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) idle_.notify_all();
  }

  // Returns when no call lives, at `deadline` at the latest; true if none lives.
  bool WaitUntilIdle(Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    return idle_.wait_until(lock, deadline, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable idle_;
  int count_ = 0;  // guarded by mutex_
};

}  // namespace eta
