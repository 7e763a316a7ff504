#include "calibration/calibration_verdict.h"

#include <array>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/perplexity_increase.h"
#include "engine/base/error.h"

namespace eta {
namespace {

// Where denser profiles are looked for, as thresholds lowered by so much.
constexpr std::array<double, 9> kDenser = {1.0 / 16, 1.0 / 8, 3.0 / 16, 1.0 / 4, 3.0 / 8,
                                           1.0 / 2,  3.0 / 4, 1.0,      2.0};

struct Failure {
  const char* field;
  double target;
  double nearest;
  double bound;
};

// "1.61 % (95 %: 0.90 to 2.31 %)"
std::string Readable(const PerplexityIncrease& increase) {
  std::string text = absl::StrFormat("%.2f %%", increase.percent);
  if (increase.interval) {
    absl::StrAppendFormat(&text, " (95 %%: %.2f to %.2f %%)", increase.interval->low,
                          increase.interval->high);
  }
  return text;
}

absl::Status Exceeded(const Failure& failure, const PerplexityIncrease& increase,
                      const std::string& sentence) {
  std::map<std::string, std::string> metadata = {{"target", absl::StrCat(failure.target)},
                                                 {"nearest", absl::StrCat(failure.nearest)},
                                                 {"bound", absl::StrCat(failure.bound)},
                                                 {"increase", absl::StrCat(increase.percent)}};
  if (increase.interval) {
    metadata["low"] = absl::StrCat(increase.interval->low);
    metadata["high"] = absl::StrCat(increase.interval->high);
  }
  return MakeError(
      absl::StatusCode::kFailedPrecondition, absl::StrCat(failure.field, ": ", sentence),
      {.reason = "TARGET_UNREACHABLE", .field = failure.field, .metadata = std::move(metadata)});
}

absl::Status JudgeAgainstFull(double bound, const CalibrationResult& result) {
  const PerplexityIncrease increase = IncreaseOver(result.full, result.frozen);
  if (increase.percent <= bound) return absl::OkStatus();
  return Exceeded({.field = "target.max_perplexity_increase",
                   .target = bound,
                   .nearest = increase.percent,
                   .bound = bound},
                  increase,
                  absl::StrFormat("wanted at most %g %% over full attention, the held-out "
                                  "documents came to %s",
                                  bound, Readable(increase)));
}

absl::Status JudgeAgainstDynamic(double bound, const CalibrationResult& result,
                                 const MeasureDenser& denser) {
  const PerplexityIncrease increase = IncreaseOver(*result.dynamic, result.frozen);
  if (increase.percent <= bound) return absl::OkStatus();
  double nearest = result.frozen.union_density;
  double least = increase.percent;
  for (size_t i = 0; i < kDenser.size() && !(least <= bound); ++i) {
    const absl::StatusOr<DecodeMeasurement> measured = denser(kDenser[i]);
    if (!measured.ok()) return measured.status();
    const double percent = IncreaseOver(*result.dynamic, *measured).percent;
    if (percent >= least) continue;
    least = percent;
    nearest = measured->union_density;
  }
  return Exceeded(
      {.field = "target.dynamic_union_density",
       .target = result.dynamic->union_density,
       .nearest = nearest,
       .bound = bound},
      increase,
      absl::StrFormat("at the union density of dynamic thresholds, %.3f, the perplexity of the "
                      "held-out documents is %s over theirs, wanted at most %g %%; the nearest is "
                      "union_density %.3f, %.2f %% over",
                      result.dynamic->union_density, Readable(increase), bound, nearest, least));
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
  if (result.frozen.mass) {
    evidence.retained_mass = result.frozen.mass->mean;
    evidence.retained_mass_p1 = result.frozen.mass->p1;
  }
}

absl::Status JudgeHeldOut(const ProfileTarget& target, const CalibrationResult& result,
                          const MeasureDenser& denser) {
  switch (target.kind) {
    case ProfileTargetKind::kMaxPerplexityIncrease:
      return JudgeAgainstFull(target.value, result);
    case ProfileTargetKind::kDynamicUnionDensity:
      return JudgeAgainstDynamic(target.value, result, denser);
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
