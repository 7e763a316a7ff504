// Runs the built etactl in a process of its own, as a user does.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/testing/process/program_process.h"

namespace eta::testing {

class CtlProcess : public ProgramProcess {
 public:
  explicit CtlProcess(std::vector<std::string> arguments, const std::string& input = "")
      : ProgramProcess("etactl", std::move(arguments), input) {}
};

// The JSON objects of an output with one object per line.
std::vector<nlohmann::json> JsonLines(const std::string& output);

}  // namespace eta::testing
