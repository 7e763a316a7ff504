#include "service/process/stop_signals.h"

#include <pthread.h>
#include <unistd.h>

#include <ctime>

namespace eta {

StopSignals::StopSignals() {
  std::signal(SIGPIPE, SIG_IGN);
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
}

bool StopSignals::Await(std::chrono::seconds patience) const {
  const timespec time{.tv_sec = patience.count(), .tv_nsec = 0};
  return sigtimedwait(&signals_, nullptr, &time) >= 0;
}

void StopSignals::Await() const {
  while (sigwaitinfo(&signals_, nullptr) < 0) {  // interrupted: the process was stopped and goes on
  }
}

void StopSignals::Raise() {
  kill(getpid(), SIGTERM);
}

}  // namespace eta
