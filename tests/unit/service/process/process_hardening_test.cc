// What a process that was hardened can no longer do, and what it still can. Each test hardens a
// process of its own.
#include "service/process/process_hardening.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "service/process/system_call_filter.h"
#include "tests/testing/base/temp_folder.h"

namespace eta {
namespace {

constexpr char kEnd = '.';

// What `body`, run in a child, says is wrong; empty: nothing.
std::string InChild(const std::function<std::string()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    const std::string wrong = body() + kEnd;
    const bool told = write(ends[1], wrong.data(), wrong.size()) == std::ssize(wrong);
    _exit(told ? 0 : 1);
  }
  close(ends[1]);
  std::string wrong;
  char part[512];
  for (ssize_t got; (got = read(ends[0], part, sizeof part)) > 0;) wrong.append(part, got);
  close(ends[0]);
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    wrong += " child did not end well";
  }
  // Without it the child became another program.
  if (wrong.empty() || wrong.back() != kEnd) return wrong + " child did not come to its end";
  wrong.pop_back();
  return wrong;
}

struct Attempt {
  const char* what;
  std::function<long()> call;  // negative, or MAP_FAILED: errno says why
  int error = EPERM;
};

std::string Expect(const std::vector<Attempt>& attempts) {
  std::string wrong;
  for (const Attempt& attempt : attempts) {
    errno = 0;
    const long result = attempt.call();
    const int error = result < 0 ? errno : 0;
    if (error != attempt.error) wrong += std::string(attempt.what) + ": " + strerror(error) + "; ";
  }
  return wrong;
}

long Map(int protection) {
  void* const at = mmap(nullptr, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return -1;
  munmap(at, 4096);
  return 0;
}

long MakeExecutable() {
  void* const at = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return at == MAP_FAILED ? 0 : mprotect(at, 4096, PROT_READ | PROT_EXEC);
}

// To be written, then mapped as code.
long MakeFileInMemory() {
  return memfd_create("code", MFD_CLOEXEC);
}

long Spawn() {
  char program[] = "/bin/true";
  char* const argv[] = {program, nullptr};
  pid_t child;
  errno = posix_spawn(&child, program, nullptr, nullptr, argv, environ);
  return errno == 0 ? 0 : -1;
}

constexpr long kHighBits = long{1} << 40;  // of what the kernel reads as 32 bits

std::vector<Attempt> Forbidden() {
  char program[] = "/bin/true";
  static char* const argv[] = {program, nullptr};
  static io_uring_params params{};
  return {
      {"execve", [] { return syscall(SYS_execve, "/bin/true", argv, environ); }},
      {"execveat", [] { return syscall(SYS_execveat, AT_FDCWD, "/bin/true", argv, environ, 0); }},
      {"fork", [] { return syscall(SYS_fork); }},
      {"vfork by clone", [] { return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }},
      {"clone3", [] { return syscall(SYS_clone3, nullptr, 0); }, ENOSYS},
      {"posix_spawn", Spawn},
      {"ptrace", [] { return ptrace(PTRACE_ATTACH, getppid(), nullptr, nullptr); }},
      {"process_vm_readv",
       [] { return syscall(SYS_process_vm_readv, getppid(), nullptr, 0, nullptr, 0, 0); }},
      {"unshare", [] { return syscall(SYS_unshare, CLONE_NEWUSER); }},
      {"mount", [] { return syscall(SYS_mount, "none", "/mnt", "tmpfs", 0, nullptr); }},
      {"setuid", [] { return syscall(SYS_setuid, getuid()); }},
      {"bpf", [] { return syscall(SYS_bpf, 0, nullptr, 0); }},
      {"io_uring", [] { return syscall(SYS_io_uring_setup, 1, &params); }},
      {"keyctl", [] { return syscall(SYS_keyctl, 0, 0, 0, 0, 0); }},
      {"raw socket", [] { return socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP); }},
      {"raw socket, IPv6", [] { return socket(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6); }},
      {"raw socket, high bits",
       [] { return syscall(SYS_socket, kHighBits | AF_INET, kHighBits | SOCK_RAW, IPPROTO_ICMP); }},
      {"packet socket", [] { return socket(AF_PACKET, SOCK_RAW, 0); }},
      {"crypto socket", [] { return socket(AF_ALG, SOCK_SEQPACKET, 0); }},
      {"vsock", [] { return socket(AF_VSOCK, SOCK_STREAM, 0); }},
      {"netfilter socket", [] { return socket(AF_NETLINK, SOCK_RAW, 12); }},
      {"terminal input", [] { return syscall(SYS_ioctl, 0, kHighBits | 0x5412, "x"); }},
  };
}

std::vector<Attempt> GeneratedCode() {
  return {{"writable code", [] { return Map(PROT_READ | PROT_WRITE | PROT_EXEC); }},
          {"written code", MakeExecutable},
          {"file in memory", MakeFileInMemory}};
}

std::string FilterAnd(const SystemCallFilterOptions& options,
                      const std::function<std::string()>& body) {
  return InChild([&]() -> std::string {
    const absl::Status filtered = FilterSystemCalls(options);
    return filtered.ok() ? body() : std::string(filtered.message());
  });
}

TEST(SystemCallFilter, RefusesWhatAServerNeverDoes) {
  EXPECT_EQ(FilterAnd({}, [] { return Expect(Forbidden()); }), "");
  EXPECT_EQ(FilterAnd({}, [] { return Expect(GeneratedCode()); }), "");
}

TEST(SystemCallFilter, HoldsInThreadsThatBeginLater) {
  EXPECT_EQ(FilterAnd({},
                      [] {
                        std::string wrong;
                        std::thread([&wrong] { wrong = Expect(Forbidden()); }).join();
                        return wrong;
                      }),
            "");
}

TEST(SystemCallFilter, LeavesThreadsFilesAndSocketsOfTheInternet) {
  EXPECT_EQ(FilterAnd({},
                      [] {
                        return Expect({
                            {"TCP", [] { return socket(AF_INET, SOCK_STREAM, 0); }, 0},
                            {"TCP over IPv6", [] { return socket(AF_INET6, SOCK_STREAM, 0); }, 0},
                            {"UDP", [] { return socket(AF_INET, SOCK_DGRAM, 0); }, 0},
                            {"this host", [] { return socket(AF_UNIX, SOCK_STREAM, 0); }, 0},
                            {"routes", [] { return socket(AF_NETLINK, SOCK_RAW, 0); }, 0},
                            {"memory", [] { return Map(PROT_READ | PROT_WRITE); }, 0},
                            {"code of a library", [] { return Map(PROT_READ | PROT_EXEC); }, 0},
                            {"files", [] { return open("/dev/null", O_RDWR); }, 0},
                        });
                      }),
            "");
}

TEST(SystemCallFilter, TheHelperOfFormatsForksAndHasNoSockets) {
  EXPECT_EQ(FilterAnd({.may_fork = true, .may_make_sockets = false},
                      []() -> std::string {
                        const std::string forks = InChild([] { return std::string(); });
                        if (!forks.empty()) return forks;
                        return Expect({
                            {"execve", [] { return syscall(SYS_execve, "/bin/true", 0, 0); }},
                            {"TCP", [] { return socket(AF_INET, SOCK_STREAM, 0); }},
                            {"this host", [] { return socket(AF_UNIX, SOCK_STREAM, 0); }},
                            {"accept", [] { return accept(0, nullptr, nullptr); }},
                            {"files", [] { return open("/dev/null", O_RDWR); }, 0},
                        });
                      }),
            "");
}

TEST(SystemCallFilter, ACompilationHasNoFilesEither) {
  EXPECT_EQ(FilterAnd({.may_make_sockets = false, .may_open_files = false},
                      [] {
                        return Expect({
                            {"fork", [] { return syscall(SYS_fork); }},
                            {"TCP", [] { return socket(AF_INET, SOCK_STREAM, 0); }},
                            {"files", [] { return open("/dev/null", O_RDWR); }},
                            {"names", [] { return unlink("/tmp/nothing"); }},
                            {"memory", [] { return Map(PROT_READ | PROT_WRITE); }, 0},
                        });
                      }),
            "");
}

TEST(SystemCallFilter, LetsCodeBeGeneratedWhereThatIsSaid) {
  EXPECT_EQ(FilterAnd({.allow_generated_code = true},
                      []() -> std::string {
                        const bool mapped = Map(PROT_READ | PROT_WRITE | PROT_EXEC) == 0;
                        const bool made = MakeExecutable() == 0 && MakeFileInMemory() >= 0;
                        return mapped && made ? Expect(Forbidden()) : "refused";
                      }),
            "");
}

TEST(ProcessHardening, LeavesNoCoreFileAndMakesFilesForItsUserAlone) {
  const TempFolder folder;
  EXPECT_EQ(InChild([&folder]() -> std::string {
              umask(0);
              HardenBeforeFlags();
              if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) return "may gain rights";
              folder.Write("file", "secret");
              struct stat info = {};
              const bool made = stat((folder.path() + "/file").c_str(), &info) == 0;
              if (!made || (info.st_mode & 0777) != 0600) return "files for others";
              if (prctl(PR_GET_DUMPABLE) != 0) return "may be traced";
              if (!HardenByFlags({}, false).ok()) return "not hardened";
              if (prctl(PR_GET_DUMPABLE) != 0) return "may be traced again";
              rlimit limit{};
              getrlimit(RLIMIT_CORE, &limit);
              return limit.rlim_cur == 0 && limit.rlim_max == 0 ? "" : "core files";
            }),
            "");
}

TEST(ProcessHardening, CoreFilesAndAnUnfilteredProcessOnlyIfAskedFor) {
  EXPECT_EQ(InChild([]() -> std::string {
              HardenBeforeFlags();
              const auto filtered = HardenByFlags(
                  {.allow_core_dumps = true, .system_call_filter = SystemCallFilter::kOff}, false);
              if (!filtered.ok() || *filtered) return "filtered";
              if (prctl(PR_GET_DUMPABLE) != 1) return "no core files";
              return Spawn() == 0 ? "" : "no programs";
            }),
            "");
}

TEST(ProcessHardening, AutoFiltersWhereNothingGeneratesCode) {
  EXPECT_FALSE(FiltersByDefault(true));
  for (const bool generates_code : {false, true}) {
    EXPECT_EQ(InChild([generates_code]() -> std::string {
                const auto filtered = HardenByFlags({}, generates_code);
                if (!filtered.ok()) return std::string(filtered.status().message());
                if (*filtered != FiltersByDefault(generates_code)) return "not as said";
                return (Spawn() < 0) == *filtered ? "" : "not in force";
              }),
              "");
  }
}

}  // namespace
}  // namespace eta
