#include "calibration/calibrate/calibration_verdict.h"

#include <iterator>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/calibrate/perplexity_increase.h"
#include "engine/base/error.h"

namespace eta {
namespace {

// "1.61 % (95 %: 0.90 to 2.31 %)"
std::string Readable(const PerplexityIncrease& increase) {
  std::string text = absl::StrFormat("%.2f %%", increase.percent);
  if (increase.interval) {
    absl::StrAppendFormat(&text, " (95 %%: %.2f to %.2f %%)", increase.interval->low,
                          increase.interval->high);
  }
  return text;
}

// `base`: what the perplexity is compared with; `judge`: and by what.
absl::Status JudgeIncrease(const char* field, const char* base, double bound,
                           const PerplexityIncrease& increase, const char* judge = "") {
  if (increase.percent <= bound) return absl::OkStatus();
  std::map<std::string, std::string> metadata = {{"target", absl::StrCat(bound)},
                                                 {"nearest", absl::StrCat(increase.percent)}};
  if (increase.interval) {
    metadata["low"] = absl::StrCat(increase.interval->low);
    metadata["high"] = absl::StrCat(increase.interval->high);
  }
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrFormat("%s: wanted a perplexity at most %g %% over %s, the held-out "
                                   "documents came to %s%s",
                                   field, bound, base, Readable(increase), judge),
                   {.reason = "TARGET_UNREACHABLE", .field = field, .metadata = metadata});
}

absl::Status JudgeMass(double least, const RetainedMass& mass) {
  if (mass.mean >= least) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrFormat("target.retained_mass: wanted at least %g of full attention's "
                                   "mass, the held-out documents keep %.4f (1st percentile %.4f)",
                                   least, mass.mean, mass.p1),
                   {.reason = "TARGET_UNREACHABLE",
                    .field = "target.retained_mass",
                    .metadata = {{"target", absl::StrCat(least)},
                                 {"nearest", absl::StrCat(mass.mean)},
                                 {"p1", absl::StrCat(mass.p1)}}});
}

}  // namespace

void SetMeasurements(const CalibrationResult& result, ProfileEvidence& evidence) {
  evidence.perplexity_full = result.full.perplexity;
  if (result.dynamic) {
    evidence.perplexity_dynamic = result.dynamic->perplexity;
    evidence.dynamic_head_density = result.dynamic->head_density;
    evidence.dynamic_union_density = result.dynamic->union_density;
    evidence.dynamic_recall = result.dynamic->recall;
    evidence.increase_over_dynamic = IncreaseOver(*result.dynamic, result.frozen).interval;
  }
  evidence.perplexity_frozen = result.frozen.perplexity;
  evidence.increase_over_full = IncreaseOver(result.full, result.frozen).interval;
  evidence.head_density = result.frozen.head_density;
  evidence.union_density = result.frozen.union_density;
  evidence.recall = result.frozen.recall.value_or(1.0);
  evidence.divergence.reset();
  if (const std::optional<MeasuredDivergence>& measured = result.frozen.divergence) {
    evidence.divergence = {.nats = measured->nats, .rows = std::ssize(measured->rows)};
  }
  if (result.frozen.mass) {
    evidence.retained_mass = result.frozen.mass->mean;
    evidence.retained_mass_p1 = result.frozen.mass->p1;
  }
}

absl::Status JudgeHeldOut(const ProfileTarget& target, const CalibrationResult& result) {
  switch (target.kind) {
    case ProfileTargetKind::kMaxPerplexityIncrease: {
      constexpr char kField[] = "target.max_perplexity_increase";
      constexpr char kBase[] = "full attention's";
      const absl::Status text =
          JudgeIncrease(kField, kBase, target.value, IncreaseOver(result.full, result.frozen));
      if (!text.ok() || !result.frozen.divergence) return text;
      return JudgeIncrease(kField, kBase, target.value,
                           IncreaseByDivergence(*result.frozen.divergence),
                           " by their divergence from it");
    }
    case ProfileTargetKind::kDynamicUnionDensity:
      return JudgeIncrease("target.dynamic_union_density", "dynamic thresholds'", target.value,
                           IncreaseOver(*result.dynamic, result.frozen));
    case ProfileTargetKind::kRetainedMass:
      return JudgeMass(target.value, *result.frozen.mass);
    case ProfileTargetKind::kMatchDynamic:
    case ProfileTargetKind::kHeadDensity:
    case ProfileTargetKind::kUnionDensity:
      break;
  }
  return absl::OkStatus();
}

}  // namespace eta
