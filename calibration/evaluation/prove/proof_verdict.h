// Whether what a proof has measured lies within a tolerance.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calibration/evaluation/prove/proof_scores.h"
#include "calibration/solvers/interval.h"

namespace eta {

struct ProofTolerance {
  double macro_points = 1.0;         // the mean over tasks may lose so many points
  double task_points = 2.0;          // no task's interval may lie wholly below a loss of so many
  double perplexity_increase = 0.5;  // percent
  double speed = 0.98;               // of full attention's, at short contexts

  bool operator==(const ProofTolerance&) const = default;
};

// One task over all lengths; shares.
struct TaskOutcome {
  std::string task;
  int64_t questions = 0;
  double full = 0.0;
  double sparse = 0.0;
  // Sparse over full, paired. 95 %, corrected for the number of tasks that count (Bonferroni).
  MeanInterval more;
  bool counts = false;  // full attention can do it
};

// The mean over the tasks that count.
struct MacroOutcome {
  double full = 0.0;
  double sparse = 0.0;
  MeanInterval more;  // 95 %
};

struct LengthOutcome {
  int32_t length = 0;
  MacroOutcome macro;
};

// What must hold. Values are in the unit, bounds too.
struct ProofRule {
  std::string name;             // "macro", "task", "perplexity", "speed"
  std::string what;             // for people: what it is the value of
  std::string unit;             // "points", "%", "x"
  std::optional<double> value;  // nothing: there is none, and the rule does not hold
  std::optional<std::pair<double, double>> interval;
  double bound = 0.0;
  bool at_most = false;  // the bound is the largest value that holds; else the smallest
  bool holds = false;
};

struct ProofVerdict {
  std::vector<TaskOutcome> tasks;
  std::vector<LengthOutcome> lengths;
  std::optional<MacroOutcome> macro;  // nothing: no task counts
  std::vector<ProofRule> rules;

  bool holds() const;
};

// A verdict is of measured values; only a task is judged by its interval, since among many tasks
// one always looks bad. No task that counts is no proof: then the rule `macro` does not hold.
// REQUIRES: the scores of a task stand together.
ProofVerdict JudgeProof(const ProofScores& scores, const ProofTolerance& tolerance);

}  // namespace eta
