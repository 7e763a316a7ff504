// Whether an adapted model is what was asked for: its block union and its perplexity against both
// bounds, of one measurement.
#pragma once

#include <cstdint>
#include <string>

#include "training/evaluation/held_out.h"
#include "training/optimizer/dual_ascent.h"

namespace eta::training {

// A union up to target * (1 + this) keeps its bound: steering swings about the target.
inline constexpr double kUnionTolerance = 0.01;

struct Verdict {
  DualAscentOptions asked;
  int64_t tokens = 0;  // that were scored
  double union_density = 1.0;
  double perplexity_increase = 0.0;  // of sparse attention over the original's full, as a share
  bool verified = false;             // enough tokens: kMinVerdictTokens
  bool union_kept = false;
  bool perplexity_kept = false;

  bool kept() const { return verified && union_kept && perplexity_kept; }
};

// `model` with sparse attention, `original` with full, on the same text. What is not finite keeps
// no bound. Without DualAscentOptions::slack, which is for the way there.
Verdict Judge(const DualAscentOptions& asked, const HeldOutResult& model,
              const HeldOutResult& original);

// What was asked for, what was measured, and which bounds are kept.
std::string VerdictText(const Verdict& verdict);

}  // namespace eta::training
