#include "service/process/stop_signals.h"

#include <pthread.h>

#include "service/process/exit.h"

namespace eta {

StopSignals::StopSignals(unsigned last_seconds) : last_seconds_(last_seconds) {
  std::signal(SIGPIPE, SIG_IGN);
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
}

StopSignals::~StopSignals() {
  if (!thread_) return;
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  pthread_kill(thread_->native_handle(), SIGTERM);
  thread_->join();
}

void StopSignals::Begin() {
  thread_.emplace([this] { Run(); });
  pthread_setname_np(thread_->native_handle(), "eta-signals");
}

bool StopSignals::Await(std::chrono::milliseconds patience) {
  MutexLock lock(mutex_);
  changed_.WaitFor(lock, patience,
                   [this]() REQUIRES(mutex_) { return woken_ || received_ > awaited_; });
  if (received_ == awaited_) return false;
  ++awaited_;
  return true;
}

void StopSignals::Wake() {
  {
    const MutexLock lock(mutex_);
    woken_ = true;
  }
  changed_.NotifyAll();
}

void StopSignals::Run() {
  while (true) {
    // An error means that the process was stopped and goes on.
    if (sigwaitinfo(&signals_, nullptr) < 0) continue;
    {
      const MutexLock lock(mutex_);
      if (stop_) return;
      if (++received_ == 2) ExitAfter(last_seconds_, kExitHung);  // a third does not put it off
    }
    changed_.NotifyAll();
  }
}

}  // namespace eta
