#include "training/commands/stop_request.h"

#include <time.h>

#include <atomic>
#include <csignal>
#include <cstdint>

namespace eta::training {
namespace {

// Within this time a signal is the first one once more: `timeout` and terminals send it to a
// process and to its group.
constexpr int64_t kSameRequestMs = 1000;

std::atomic<int64_t> requested_at_ms = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free);  // as a handler of signals needs it

void Request(int signal) {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t now_ms = int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000 + 1;
  int64_t first_ms = 0;
  if (requested_at_ms.compare_exchange_strong(first_ms, now_ms)) return;
  if (now_ms - first_ms < kSameRequestMs) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);  // once this handler has returned
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
  return requested_at_ms != 0;
}

}  // namespace eta::training
