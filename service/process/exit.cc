#include "service/process/exit.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

namespace eta {
namespace {

std::atomic<int> code_of_alarm;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler reads it");

[[noreturn]] void OnTerminate() {
  try {
    if (const auto failure = std::current_exception()) std::rethrow_exception(failure);
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kLastWords = "eta-server: out of memory\n";
    [[maybe_unused]] const ssize_t said =
        write(STDERR_FILENO, kLastWords.data(), kLastWords.size());
    _exit(kExitOutOfMemory);
  } catch (...) {  // a defect
  }
  std::abort();
}

}  // namespace

void ExitWhereMemoryEnds() {
  std::set_terminate(OnTerminate);
}

void ExitAfter(unsigned seconds, int code) {
  code_of_alarm = code;
  std::signal(SIGALRM, [](int) {
    constexpr std::string_view kLastWords = "eta-server: comes to no end by itself: ends now\n";
    [[maybe_unused]] const ssize_t said =
        write(STDERR_FILENO, kLastWords.data(), kLastWords.size());
    _exit(code_of_alarm);
  });
  alarm(seconds);
}

}  // namespace eta
