// The line that says how a run is getting on.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "training/progress/step_record.h"

namespace eta::training {

// "step 120 of 1000: loss 3.214, heads 0.41, blocks 0.63, 812K tokens/s, 18 min left"
std::string ProgressText(const StepRecord& record, int64_t steps);
// "step 500: perplexity 12.02 full, 12.05 sparse at union 0.27, needles 12 and 12 of 12"
std::string EvaluationText(const EvaluationRecord& record);

// On stderr: one line that is written over on a terminal; elsewhere a line now and then. Not
// thread-safe.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();  // ends the line
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Show(const StepRecord& record, int64_t steps);
  // A line of its own, which stays.
  void Say(const std::string& text);

 private:
  void Clear();

  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace eta::training
