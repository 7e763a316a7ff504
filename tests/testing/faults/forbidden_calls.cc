// Loaded in front of a process's C library (LD_PRELOAD): an intruder's code in the process. At
// SIGUSR2 it tries what an intruder would try. It writes the results to the file that
// ETA_INTRUDER_REPORT names: one line "WHAT RESULT" each, RESULT being "done" or an error number;
// then "end".
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace {

int report = -1;

void Tell(const char* what, long result) {
  if (result < 0) {
    dprintf(report, "%s %d\n", what, errno);
  } else {
    dprintf(report, "%s done\n", what);
  }
}

long MapCode(int protection) {
  return mmap(nullptr, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0;
}

void Intrude(int) {
  rlimit core{};
  getrlimit(RLIMIT_CORE, &core);
  dprintf(report, "core_limit %lu\ndumpable %d\nno_new_privs %d\nfilter %d\n", core.rlim_max,
          prctl(PR_GET_DUMPABLE), prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), prctl(PR_GET_SECCOMP));
  Tell("file", open("/dev/null", O_RDONLY | O_CLOEXEC));
  Tell("tcp", socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Tell("raw_socket", socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, 1));
  Tell("packet_socket", socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0));
  Tell("ptrace", ptrace(PTRACE_TRACEME, 0, nullptr, nullptr));
  Tell("mount", syscall(SYS_mount, "none", "/mnt", "tmpfs", 0, nullptr));
  Tell("written_code", MapCode(PROT_READ | PROT_WRITE | PROT_EXEC));
  Tell("file_in_memory", memfd_create("code", MFD_CLOEXEC));
  const long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (child == 0) _exit(0);
  Tell("process", child);
  char program[] = "/bin/true";
  char* const argv[] = {program, nullptr};
  Tell("program", execve(program, argv, environ));  // returns only if it was refused
  dprintf(report, "end\n");
}

__attribute__((constructor)) void Arm() {
  const char* const path = std::getenv("ETA_INTRUDER_REPORT");  // NOLINT(concurrency-mt-unsafe)
  if (path == nullptr) return;
  report = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  struct sigaction action = {};
  action.sa_handler = Intrude;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, nullptr);
}

}  // namespace
