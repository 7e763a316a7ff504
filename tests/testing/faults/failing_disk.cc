// Loaded in front of a process's C library (LD_PRELOAD): a disk that fails on command. The disk is
// the file that ETA_FAILING_DISK names, and the files whose names begin with that name, as SQLite's
// do. While a file DISK.fails exists and holds "write" or "sync", those operations fail. With
// "full" there is no room for writes.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

bool Fails(int fd, const char* operation) {
  static const char* const disk = std::getenv("ETA_FAILING_DISK");  // NOLINT(concurrency-mt-unsafe)
  if (disk == nullptr) return false;
  const std::string name = "/proc/self/fd/" + std::to_string(fd);
  std::array<char, 4096> path{};
  if (readlink(name.c_str(), path.data(), path.size() - 1) < 0) return false;
  if (std::strncmp(path.data(), disk, std::strlen(disk)) != 0) return false;
  const int trigger = open((std::string(disk) + ".fails").c_str(), O_RDONLY | O_CLOEXEC);
  if (trigger < 0) return false;
  std::array<char, 16> failing{};
  const bool read_it = read(trigger, failing.data(), failing.size() - 1) > 0;
  close(trigger);
  return read_it && std::strcmp(failing.data(), operation) == 0;
}

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int Failed(int error) {
  errno = error;
  return -1;
}

template <typename Write>
ssize_t WriteOr(const Write& write, int fd) {
  if (Fails(fd, "write")) return Failed(EIO);
  return Fails(fd, "full") ? Failed(ENOSPC) : write();
}

}  // namespace

extern "C" {

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  static const auto real = Real<decltype(&pwrite)>("pwrite");
  return WriteOr([&] { return real(fd, bytes, size, offset); }, fd);
}

ssize_t pwrite64(int fd, const void* bytes, size_t size, off64_t offset) {
  static const auto real = Real<decltype(&pwrite64)>("pwrite64");
  return WriteOr([&] { return real(fd, bytes, size, offset); }, fd);
}

int fsync(int fd) {
  static const auto real = Real<decltype(&fsync)>("fsync");
  return Fails(fd, "sync") ? Failed(EIO) : real(fd);
}

int fdatasync(int fd) {
  static const auto real = Real<decltype(&fdatasync)>("fdatasync");
  return Fails(fd, "sync") ? Failed(EIO) : real(fd);
}

}  // extern "C"
