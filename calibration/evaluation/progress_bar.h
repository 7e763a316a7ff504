// The progress of a long evaluation on stderr, if that is a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace eta {

class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar();  // removes the bar
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Redraws at most ten times a second. `what` stands behind it.
  void Show(int64_t done, int64_t total, const std::string& what = "");

 private:
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace eta
