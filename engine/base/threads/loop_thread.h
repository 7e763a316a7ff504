// A named thread that calls one function again and again: after a time, or sooner when it is woken.
//
// A function that must also watch descriptors waits in poll() instead, on a thread of its own.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "engine/base/clock.h"
#include "engine/base/mutex.h"

namespace eta {

class LoopThread {
 public:
  // One call; returns when the next one is due. A time that has passed: at once.
  using Body = std::function<Clock::time_point()>;
  static constexpr Clock::time_point kWhenWoken = Clock::time_point::max();

  // Calls `body` at once, then whenever it said or Wake is called. `name` is what tools show, in at
  // most 15 characters.
  LoopThread(const char* name, Body body);
  // Calls `body` whenever `interval` has passed since the thread began or the last call ended.
  LoopThread(const char* name, std::chrono::milliseconds interval, std::function<void()> body);
  ~LoopThread() { Stop(); }
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  // From any thread, the body included: a call begins soon, one for all that wake it before then.
  void Wake();
  // From any thread but its own, any number of times: when it returns no call runs or will run. A
  // call that runs is waited for.
  void Stop();

 private:
  void Run(Clock::time_point next, const Body& body);

  Mutex mutex_;
  CondVar wake_;
  bool woken_ GUARDED_BY(mutex_) = false;
  bool stop_ GUARDED_BY(mutex_) = false;

  Mutex join_mutex_;
  std::thread thread_ GUARDED_BY(join_mutex_);  // last: it uses the others
};

}  // namespace eta
