// The progress of long work on stderr: on a terminal one line that is written over.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace eta {

// "[####......]", with as many of `cells` filled as `done` is of `total`. REQUIRES: total > 0.
std::string BarText(int64_t done, int64_t total, int64_t cells);

// Not thread-safe.
class ProgressLine {
 public:
  // Where stderr is no terminal.
  enum class Elsewhere { kSilent, kLines };

  explicit ProgressLine(Elsewhere elsewhere = Elsewhere::kSilent);
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  bool terminal() const { return terminal_; }

  // What comes less than 0.1 s after the last, elsewhere 10 s, is left out unless `at_once`.
  void Show(const std::string& text, bool at_once = false);
  // A line of its own, which stays.
  void Say(const std::string& text);
  void Clear();

 private:
  const bool terminal_;
  const bool shows_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace eta
