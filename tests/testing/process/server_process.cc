#include "tests/testing/process/server_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>

extern char** environ;

namespace eta::testing {
namespace {

constexpr int kPatienceMs = 120'000;
// The longest wait for a process to end. After it something is wrong, and the other tests must go
// on.
constexpr int kExitPatienceMs = 600'000;

bool Ends(pid_t process) {
  const auto fd = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
  if (fd < 0) return true;  // then it is waited for without a limit
  pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
  const bool ends = poll(&waiting, 1, kExitPatienceMs) == 1;
  close(fd);
  return ends;
}

}  // namespace

ServerProcess::ServerProcess(const std::string& binary, const std::vector<std::string>& flags) {
  char errors[] = "/tmp/eta-server-errors-XXXXXX";
  const int errors_fd = mkstemp(errors);
  errors_path_ = errors;
  int pipe_fds[2];
  if (errors_fd < 0 || pipe2(pipe_fds, O_CLOEXEC) != 0) return;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors_fd, STDERR_FILENO);
  std::vector<char*> argv = {const_cast<char*>(binary.c_str())};
  for (const std::string& flag : flags) argv.push_back(const_cast<char*>(flag.c_str()));
  argv.push_back(nullptr);
  if (posix_spawn(&pid_, binary.c_str(), &actions, nullptr, argv.data(), environ) != 0) pid_ = -1;
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_fds[1]);
  close(errors_fd);
  output_ = pipe_fds[0];
}

ServerProcess::~ServerProcess() {
  if (Running()) {
    Signal(SIGKILL);
    AwaitExit();
  }
  if (output_ >= 0) close(output_);
  unlink(errors_path_.c_str());
}

std::string ServerProcess::AwaitLine(std::string_view prefix) {
  std::string line;
  while (true) {
    pollfd waiting{.fd = output_, .events = POLLIN, .revents = 0};
    char next;
    if (poll(&waiting, 1, kPatienceMs) != 1 || read(output_, &next, 1) != 1) return "";
    if (next != '\n') {
      line += next;
    } else if (line.rfind(prefix, 0) == 0) {
      return line.substr(prefix.size());
    } else {
      line.clear();
    }
  }
}

void ServerProcess::Signal(int signal) {
  if (pid_ > 0 && !wait_status_) kill(pid_, signal);
}

bool ServerProcess::Running() {
  if (pid_ < 0 || wait_status_) return false;
  int status;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return true;
  wait_status_ = status;
  return false;
}

int64_t ServerProcess::PeakMemory() const {
  std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6));
  }
  return 0;
}

void ServerProcess::ForgetPeakMemory() const {
  std::ofstream("/proc/" + std::to_string(pid_) + "/clear_refs") << "5";
}

ServerProcess::Exit ServerProcess::AwaitExit() {
  const bool hangs = Running() && !Ends(pid_);
  if (hangs) Signal(SIGKILL);
  int status;
  if (pid_ > 0 && !wait_status_ && waitpid(pid_, &status, 0) == pid_) wait_status_ = status;
  Exit exit;
  if (wait_status_ && WIFEXITED(*wait_status_)) exit.code = WEXITSTATUS(*wait_status_);
  std::ostringstream errors;
  errors << std::ifstream(errors_path_).rdbuf();
  exit.errors = errors.str();
  if (hangs) exit.errors += "killed, since it did not end";
  return exit;
}

}  // namespace eta::testing
