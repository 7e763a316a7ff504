#include "training/commands/stop_request.h"

#include <csignal>

namespace eta::training {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

void Request(int /*signal*/) {
  stop_requested = 1;
  // The second signal does what it does without a handler.
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
}

}  // namespace

void WatchForStopRequests() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a write past a limit of file size is an error like others
  struct sigaction action = {};
  action.sa_handler = Request;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

bool StopRequested() {
  return stop_requested != 0;
}

}  // namespace eta::training
