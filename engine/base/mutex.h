// std::mutex and std::condition_variable with the annotations of thread_annotations.h, which those
// of libstdc++ do not carry. Abseil's Mutex carries them too, but its condition variable waits by
// the wall clock, and Debian's build of it hides its locks from ThreadSanitizer.
//
//   mutable Mutex mutex_;
//   CondVar wake_;
//   std::vector<Job> jobs_ GUARDED_BY(mutex_);
//
//   MutexLock lock(mutex_);
//   wake_.Wait(lock, [this]() REQUIRES(mutex_) { return !jobs_.empty(); });
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "engine/base/thread_annotations.h"

namespace eta {

class CAPABILITY("mutex") Mutex {
 public:
  void Lock() ACQUIRE() { mutex_.lock(); }
  void Unlock() RELEASE() { mutex_.unlock(); }
  bool TryLock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex for its scope, but between Unlock and Lock.
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  // Of a mutex that TryLock has locked.
  MutexLock(Mutex& mutex, std::adopt_lock_t adopt) REQUIRES(mutex) : lock_(mutex.mutex_, adopt) {}
  ~MutexLock() RELEASE() = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Unlock() RELEASE() { lock_.unlock(); }
  void Lock() ACQUIRE() { lock_.lock(); }

 private:
  friend class CondVar;
  std::unique_lock<std::mutex> lock_;
};

// Each wait gives the mutex of `lock` up and holds it again when it returns. A condition is called
// with the mutex held. The analysis cannot tell that the mutex of a condition is that of `lock`, so
// the waits with a condition are not analysed; the conditions themselves are.
class CondVar {
 public:
  // May return without a notification: call it in a loop, or give it a condition.
  void Wait(MutexLock& lock) { condition_.wait(lock.lock_); }

  template <typename Condition>
  void Wait(MutexLock& lock, Condition condition) NO_THREAD_SAFETY_ANALYSIS {
    condition_.wait(lock.lock_, std::move(condition));
  }

  // What the condition says at the end: false if the time has passed and it does not hold.
  template <typename TimePoint, typename Condition>
  bool WaitUntil(MutexLock& lock, TimePoint deadline,
                 Condition condition) NO_THREAD_SAFETY_ANALYSIS {
    return condition_.wait_until(lock.lock_, deadline, std::move(condition));
  }
  template <typename Duration, typename Condition>
  bool WaitFor(MutexLock& lock, Duration duration, Condition condition) NO_THREAD_SAFETY_ANALYSIS {
    return condition_.wait_for(lock.lock_, duration, std::move(condition));
  }

  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace eta
