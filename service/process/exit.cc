#include "service/process/exit.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

namespace eta {
namespace {

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

void ExitOutOfMemoryAfter(unsigned seconds) {
  std::signal(SIGALRM, [](int) { _exit(kExitOutOfMemory); });
  alarm(seconds);
}

}  // namespace eta
