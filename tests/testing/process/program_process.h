// Runs a built program in a process of its own, as a user does.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/testing/base/temp_folder.h"

namespace eta::testing {

class ProgramProcess {
 public:
  struct Exit {
    int code = -1;  // -1: it could not be started, or a signal ended it
    std::string output, errors;
  };

  // Starts `program` of the folder of binaries with `input` on its standard input.
  ProgramProcess(const std::string& program, std::vector<std::string> arguments,
                 const std::string& input = "");
  // Kills it if it still runs.
  ~ProgramProcess();
  ProgramProcess(const ProgramProcess&) = delete;
  ProgramProcess& operator=(const ProgramProcess&) = delete;

  void Signal(int signal);
  // True if it printed something within half a minute, on standard output or on standard error.
  bool AwaitOutput() const { return AwaitBytes("out"); }
  bool AwaitErrors() const { return AwaitBytes("err"); }
  Exit AwaitExit();

 private:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  bool AwaitBytes(const std::string& file) const;

  const TempFolder folder_;
  pid_t pid_ = -1;
};

}  // namespace eta::testing
