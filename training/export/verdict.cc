#include "training/export/verdict.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/calibrate/perplexity_increase.h"

namespace eta::training {
namespace {

std::string Outcome(const Verdict& verdict) {
  if (!verdict.verified) {
    return absl::StrCat("Unverified: a verdict takes ", kMinVerdictTokens, " tokens.");
  }
  if (verdict.kept()) return "Both bounds are kept.";
  if (verdict.union_kept) return "The bound on the perplexity is not kept.";
  if (verdict.perplexity_kept) return "The bound on the block union is not kept.";
  return "Neither bound is kept.";
}

}  // namespace

Verdict Judge(const DualAscentOptions& asked, const HeldOutResult& model,
              const HeldOutResult& original) {
  Verdict verdict = {
      .asked = asked,
      .tokens = model.tokens,
      .union_density = model.all.union_density,
      .perplexity_increase = model.all.sparse_perplexity / original.all.full_perplexity - 1.0};
  verdict.verified = verdict.tokens >= kMinVerdictTokens;
  // No comparison with NaN is true.
  verdict.union_kept = verdict.union_density <= asked.target_union * (1.0 + kUnionTolerance);
  verdict.perplexity_kept = verdict.perplexity_increase <= asked.max_perplexity_increase;
  return verdict;
}

std::string VerdictText(const Verdict& verdict) {
  return absl::StrFormat(
      "Asked for: a block union of %.3g, and sparse attention's perplexity at most %.3g %% above "
      "the original's. Measured over %d tokens: %.3f and %+.2f %%. %s",
      verdict.asked.target_union, 100.0 * verdict.asked.max_perplexity_increase, verdict.tokens,
      verdict.union_density, 100.0 * verdict.perplexity_increase, Outcome(verdict));
}

}  // namespace eta::training
