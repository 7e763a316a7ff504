#include "engine/base/threads/loop_thread.h"

#include <pthread.h>

#include <utility>

namespace eta {

LoopThread::LoopThread(const char* name, Body body)
    : thread_([this, name, body = std::move(body)] {
        pthread_setname_np(pthread_self(), name);
        Run(Clock::now(), body);
      }) {}

LoopThread::LoopThread(const char* name, std::chrono::milliseconds interval,
                       std::function<void()> body)
    : thread_([this, name, interval, body = std::move(body)] {
        pthread_setname_np(pthread_self(), name);
        Run(Clock::now() + interval, [&body, interval] {
          body();
          return Clock::now() + interval;
        });
      }) {}

void LoopThread::Wake() {
  {
    const MutexLock lock(mutex_);
    woken_ = true;
  }
  wake_.NotifyOne();
}

void LoopThread::Stop() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyOne();
  const MutexLock lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void LoopThread::Run(Clock::time_point next, const Body& body) {
  MutexLock lock(mutex_);
  while (true) {
    const auto called = [this]() REQUIRES(mutex_) { return stop_ || woken_; };
    if (next == kWhenWoken) {
      wake_.Wait(lock, called);
    } else if (Clock::now() < next) {
      wake_.WaitUntil(lock, next, called);
    }
    if (stop_) return;
    woken_ = false;
    lock.Unlock();
    next = body();
    lock.Lock();
  }
}

}  // namespace eta
