// Loaded in front of a process's C library (LD_PRELOAD): a wrong wall clock. ETA_SHIFTED_CLOCK
// names a file with a number of seconds; the wall clock is wrong by that number as soon as the file
// says so. The monotonic clock is right. (libfaketime, which is packaged, also shifts the waits of
// threads, and rereads its file only without caching, at each call.)
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <ctime>

namespace {

time_t Shift() {
  static const char* const path =
      std::getenv("ETA_SHIFTED_CLOCK");  // NOLINT(concurrency-mt-unsafe)
  if (path == nullptr) return 0;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  std::array<char, 32> text{};
  const ssize_t size = read(file, text.data(), text.size() - 1);
  close(file);
  return size > 0 ? std::strtol(text.data(), nullptr, 10) : 0;
}

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) {
  static const auto real = Real<decltype(&clock_gettime)>("clock_gettime");
  const int result = real(clock, now);
  if (clock == CLOCK_REALTIME && result == 0) now->tv_sec += Shift();
  return result;
}

int gettimeofday(timeval* now, void* zone) {
  static const auto real = Real<decltype(&gettimeofday)>("gettimeofday");
  const int result = real(now, zone);
  if (result == 0) now->tv_sec += Shift();
  return result;
}

time_t time(time_t* now) {
  timespec read{};
  clock_gettime(CLOCK_REALTIME, &read);
  if (now != nullptr) *now = read.tv_sec;
  return read.tv_sec;
}

}  // extern "C"
