// Runs the built etactl in a process of its own, as a user does.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/testing/base/temp_folder.h"

namespace eta::testing {

class CtlProcess {
 public:
  struct Exit {
    int code = -1;  // -1: it could not be started, or a signal ended it
    std::string output, errors;
  };

  // Starts etactl with `input` on its standard input.
  explicit CtlProcess(std::vector<std::string> arguments, const std::string& input = "");
  // Kills it if it still runs.
  ~CtlProcess();

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

// The JSON objects of an output with one object per line.
std::vector<nlohmann::json> JsonLines(const std::string& output);

}  // namespace eta::testing
