#include "tests/testing/process/program_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

extern char** environ;

namespace eta::testing {

ProgramProcess::ProgramProcess(const std::string& program, std::vector<std::string> arguments,
                               const std::string& input) {
  arguments.insert(arguments.begin(), ETA_BINARY_DIR "/" + program);
  const std::string in = folder_.Write("in", input);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, in.c_str(), O_RDONLY, 0);
  constexpr int kNew = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, Path("out").c_str(), kNew, 0600);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, Path("err").c_str(), kNew, 0600);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  if (posix_spawn(&pid_, argv[0], &files, nullptr, argv.data(), environ) != 0) pid_ = -1;
  posix_spawn_file_actions_destroy(&files);
}

ProgramProcess::~ProgramProcess() {
  Signal(SIGKILL);
  AwaitExit();
}

void ProgramProcess::Signal(int signal) {
  if (pid_ > 0) kill(pid_, signal);
}

bool ProgramProcess::AwaitBytes(const std::string& file) const {
  for (int i = 0; i < 3000; ++i) {
    if (!ReadFile(Path(file)).empty()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

ProgramProcess::Exit ProgramProcess::AwaitExit() {
  Exit exit;
  int status = 0;
  if (pid_ > 0 && waitpid(pid_, &status, 0) == pid_ && WIFEXITED(status)) {
    exit.code = WEXITSTATUS(status);
  }
  pid_ = -1;
  exit.output = ReadFile(Path("out"));
  exit.errors = ReadFile(Path("err"));
  return exit;
}

}  // namespace eta::testing
