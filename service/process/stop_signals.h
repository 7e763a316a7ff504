// The signals that ask this process to end, SIGTERM and SIGINT. A thread waits for them, so that
// the second one ends the process whatever the other threads do, or wait for.
#pragma once

#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

#include "engine/base/mutex.h"

namespace eta {

class StopSignals {
 public:
  // Blocks them in this thread and in all that it starts from here on, so that they are waited for
  // here: make it before any thread begins. Ignores SIGPIPE. After the second signal the process
  // may go on for `last_seconds`.
  explicit StopSignals(unsigned last_seconds);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Waits for them from here on. Those that came before are not lost, but count as one. Call once.
  void Begin();
  // True once one came that no earlier call has told of; false if none did within `patience`, or
  // once Wake was called.
  bool Await(std::chrono::milliseconds patience) EXCLUDES(mutex_);
  // From any thread: no Await waits any more.
  void Wake() EXCLUDES(mutex_);

 private:
  void Run() EXCLUDES(mutex_);

  const unsigned last_seconds_;
  sigset_t signals_;
  Mutex mutex_;
  CondVar changed_;
  int received_ GUARDED_BY(mutex_) = 0;
  int awaited_ GUARDED_BY(mutex_) = 0;
  bool woken_ GUARDED_BY(mutex_) = false;
  bool stop_ GUARDED_BY(mutex_) = false;
  std::optional<std::thread> thread_;  // last: it uses the others
};

}  // namespace eta
