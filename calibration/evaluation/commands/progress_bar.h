// The progress of a long evaluation on stderr, if that is a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "engine/base/progress_line.h"

namespace eta {

class ProgressBar {
 public:
  // `what` stands behind the bar and the time that is left.
  void Show(int64_t done, int64_t total, const std::string& what = "");

 private:
  ProgressLine line_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace eta
