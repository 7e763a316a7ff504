// What the parts of a proof measure on, and how far they are.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/prove/proof_log.h"
#include "calibration/evaluation/prove/proof_plan.h"
#include "calibration/evaluation/runtime/runner.h"
#include "calibration/evaluation/tables/table_bench.h"

namespace eta {

// The work that is left, in the time of a prompt's token. Not thread-safe.
class ProofClock {
 public:
  static constexpr double kStep = 30.0;  // of a decode step

  using Show = std::function<void(double done, double left, const std::string& part)>;
  explicit ProofClock(Show show = {}) : show_(std::move(show)) {}

  void SetLeft(const std::string& part, double work) { left_[part] = work; }
  void Took(const std::string& part, double work) {
    left_[part] = std::max(0.0, left_[part] - work);
    done_ += work;
    double left = 0.0;
    for (const auto& [name, of_it] : left_) left += of_it;
    if (show_) show_(done_, left, part);
  }

 private:
  Show show_;
  std::map<std::string, double> left_;
  double done_ = 0.0;
};

// All that is referred to must outlive it.
struct ProofBench {
  TableBench& bench;
  SequenceRunner& runner;                    // of the model's own cache, for the plan's longest
  std::span<const EvaluatedAttention> ways;  // full attention, and the way that is proved
  ProofPlan plan;
  ProofLog& log;
  ProofClock& clock;
};

}  // namespace eta
