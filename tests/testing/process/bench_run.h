// Runs the built eta-bench as a user does.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace eta::testing {

struct BenchRun {
  int code = -1;       // -1: it could not be started, or a signal ended it
  std::string output;  // its standard output
};

// `arguments` are a shell's text, redirections included.
inline BenchRun RunBench(const std::string& arguments) {
  const std::string command = std::string(ETA_BINARY_DIR) + "/eta-bench " + arguments;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  BenchRun run;
  std::array<char, 4096> part;
  while (const size_t count = fread(part.data(), 1, part.size(), pipe)) {
    run.output.append(part.data(), count);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) run.code = WEXITSTATUS(status);
  return run;
}

}  // namespace eta::testing
