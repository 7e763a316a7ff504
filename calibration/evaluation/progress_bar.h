// How far a long evaluation is, on stderr while that is a terminal.
#pragma once

#include <chrono>
#include <cstdint>

namespace eta {

class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar();  // takes the bar away
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Redraws ten times a second at most.
  void Show(int64_t done, int64_t total);

 private:
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace eta
