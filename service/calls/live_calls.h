// How many calls a service has in flight, so that what they use is not taken away under them.
#pragma once

#include "engine/base/clock.h"
#include "engine/base/mutex.h"

namespace eta {

class LiveCalls {
 public:
  void Begin() {
    const MutexLock lock(mutex_);
    ++count_;
  }
  void End() {
    // Notified under the lock: whoever waits may destroy this object as soon as it has the lock.
    const MutexLock lock(mutex_);
    if (--count_ == 0) idle_.NotifyAll();
  }

  // Returns when no call lives, at `deadline` at the latest; true if none lives.
  bool WaitUntilIdle(Clock::time_point deadline) {
    MutexLock lock(mutex_);
    return idle_.WaitUntil(lock, deadline, [this]() REQUIRES(mutex_) { return count_ == 0; });
  }

 private:
  Mutex mutex_;
  CondVar idle_;
  int count_ GUARDED_BY(mutex_) = 0;
};

}  // namespace eta
