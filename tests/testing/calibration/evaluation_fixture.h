// A test of evaluation, with a folder of its own and the built eta-eval.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/base/temp_folder.h"

namespace eta {

class EvaluationTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string Write(const std::string& name, const std::string& contents) const {
    return folder_.Write(name, contents);
  }
  // The exit code of eta-eval with these arguments; -1 if a signal ended it.
  static int ExitCode(const std::string& arguments) {
    const int status =
        std::system((ETA_BINARY_DIR "/eta-eval " + arguments + " > /dev/null 2>&1").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  const TempFolder folder_;
};

}  // namespace eta
