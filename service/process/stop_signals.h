// The signals that ask this process to end, SIGTERM and SIGINT, as one thread waits for them.
#pragma once

#include <chrono>
#include <csignal>

namespace eta {

class StopSignals {
 public:
  // Blocks them in this thread and in all that it starts from here on, so that Await gets them:
  // make it before any thread begins. Ignores SIGPIPE.
  StopSignals();

  // True once one came; false if none did within about `patience`.
  bool Await(std::chrono::seconds patience) const;
  void Await() const;
  // From any thread: as if one had come.
  static void Raise();

 private:
  sigset_t signals_;
};

}  // namespace eta
