#include "calibration/calibrate/promises.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

double MeasuredShare(const NeedleHits& hits) {
  return hits.full > 0 ? static_cast<double>(hits.kept) / static_cast<double>(hits.full) : 0.0;
}

std::map<std::string, std::string> Counts(const NeedleHits& hits) {
  std::map<std::string, std::string> counts = {{"needles_full", absl::StrCat(hits.full)},
                                               {"needles_kept", absl::StrCat(hits.kept)}};
  if (const std::optional<ShareInterval> kept = KeptShare(hits)) {
    counts["kept_low"] = absl::StrCat(kept->low);
    counts["kept_high"] = absl::StrCat(kept->high);
  }
  return counts;
}

// "95 %: 0.65 to 0.99". REQUIRES: full attention finds some.
std::string KeptInterval(const NeedleHits& hits) {
  const ShareInterval kept = *KeptShare(hits);
  return absl::StrFormat("95 %%: %.2f to %.2f", kept.low, kept.high);
}

double IncreaseOverFull(const ProfileEvidence& evidence) {
  return (evidence.perplexity_frozen / evidence.perplexity_full - 1.0) * 100.0;
}

// The measured share is judged. By the upper end of its interval 10 of 12 would pass for 0.95; by
// the lower end nothing would, for that of 12 of 12 is 0.76.
absl::Status JudgeRetrieval(double least, const NeedleHits& hits) {
  const double kept = MeasuredShare(hits);
  if (kept >= least) return absl::OkStatus();
  std::map<std::string, std::string> metadata = Counts(hits);
  metadata["target"] = absl::StrCat(least);
  metadata["nearest"] = absl::StrCat(kept);
  const std::string sentence =
      hits.full > 0 ? absl::StrFormat(
                          "wanted at least %g of the needles that full attention finds, "
                          "kept %d of %d (%s)",
                          least, hits.kept, hits.full, KeptInterval(hits))
                    : absl::StrFormat(
                          "full attention finds none of the %d needles, so that "
                          "retrieval cannot be judged",
                          hits.asked);
  return MakeError(
      absl::StatusCode::kFailedPrecondition, absl::StrCat("min_retrieval: ", sentence),
      {.reason = "TARGET_UNREACHABLE", .field = "min_retrieval", .metadata = std::move(metadata)});
}

}  // namespace

std::optional<ShareInterval> KeptShare(const NeedleHits& hits) {
  if (hits.full <= 0) return std::nullopt;
  return WilsonInterval(hits.kept, hits.full);
}

bool Unverified(const ProfileEvidence& evidence) {
  return !evidence.increase_over_full.has_value();
}

NeedleHits AllNeedles(const ProfileEvidence& evidence) {
  NeedleHits all;
  for (const auto& hits : {evidence.single_needles, evidence.multi_needles}) {
    if (!hits) continue;
    all.asked += hits->asked;
    all.full += hits->full;
    all.frozen += hits->frozen;
    all.kept += hits->kept;
  }
  return all;
}

absl::Status JudgePromises(const CalibrationJob& job, const ProfileEvidence& evidence) {
  const NeedleHits hits = AllNeedles(evidence);
  if (job.min_retrieval) RETURN_IF_ERROR(JudgeRetrieval(*job.min_retrieval, hits));
  if (job.allow_loss) return absl::OkStatus();
  const double increase = IncreaseOverFull(evidence);
  double most = kMaxLossPercent;
  if (job.target.kind == ProfileTargetKind::kMaxPerplexityIncrease) {
    most = std::max(most, job.target.value);
  }
  std::vector<std::string> losses;
  if (!(increase <= most)) {
    losses.push_back(absl::StrFormat("perplexity %+.2f %% over full attention's, more than %g %%",
                                     increase, most));
  }
  if (!job.min_retrieval && hits.kept < hits.full) {
    losses.push_back(absl::StrFormat("%d of the %d needles that full attention finds",
                                     hits.full - hits.kept, hits.full));
  }
  if (losses.empty()) return absl::OkStatus();
  std::map<std::string, std::string> metadata = Counts(hits);
  metadata["increase"] = absl::StrCat(increase);
  metadata["max_increase"] = absl::StrCat(most);
  return MakeError(
      absl::StatusCode::kFailedPrecondition,
      absl::StrCat("the profile would lose too much: ", absl::StrJoin(losses, ", and ")),
      {.reason = "PROFILE_LOSES", .metadata = std::move(metadata)});
}

bool DynamicDominates(const ProfileEvidence& evidence) {
  return !Unverified(evidence) && evidence.perplexity_dynamic && evidence.dynamic_union_density &&
         *evidence.dynamic_union_density <= evidence.union_density &&
         *evidence.perplexity_dynamic <= evidence.perplexity_frozen;
}

bool ToBeStaged(const CalibrationJob& job, const ProfileEvidence& evidence) {
  if (job.allow_loss) return false;
  const bool nearest = job.target.kind == ProfileTargetKind::kDynamicUnionDensity;
  const NeedleHits hits = AllNeedles(evidence);
  return DynamicDominates(evidence) || (nearest && !job.min_retrieval && hits.kept < hits.full);
}

absl::Status NameNearest(const absl::Status& failure, const CalibrationJob& job,
                         double union_density, const ProfileEvidence& evidence) {
  const NeedleHits hits = AllNeedles(evidence);
  CalibrationJob asked = {.min_retrieval = job.min_retrieval, .allow_loss = job.allow_loss};
  asked.target = {ProfileTargetKind::kUnionDensity, union_density};
  std::vector<std::string> request = {absl::StrFormat("union_density=%g", union_density)};
  if (asked.min_retrieval && !JudgeRetrieval(*asked.min_retrieval, hits).ok()) {
    const double share = std::floor(MeasuredShare(hits) * 100.0) / 100.0;
    asked.min_retrieval = share > 0.0 ? std::optional(share) : std::nullopt;
    request.push_back(share > 0.0 ? absl::StrFormat("min_retrieval=%g", share)
                                  : std::string("no min_retrieval"));
  }
  if (!JudgePromises(asked, evidence).ok()) request.emplace_back("allow_loss=true");
  const std::string wanted = absl::StrJoin(request, ", ");
  const double increase = IncreaseOverFull(evidence);
  std::string sentence = absl::StrFormat(
      "%s; the nearest request that passes: %s (reads %.1f %%, perplexity %+.2f %% over full "
      "attention's",
      failure.message(), wanted, 100.0 * evidence.union_density, increase);
  if (hits.full > 0) {
    absl::StrAppendFormat(&sentence, ", keeps %d of %d needles, %s", hits.kept, hits.full,
                          KeptInterval(hits));
  } else if (hits.asked > 0) {
    absl::StrAppendFormat(&sentence, ", full attention finds none of %d needles", hits.asked);
  }
  ErrorDetail detail = GetErrorDetail(failure);
  detail.metadata["nearest_request"] = wanted;
  detail.metadata["nearest_increase"] = absl::StrCat(increase);
  detail.metadata["nearest_reads"] = absl::StrCat(evidence.union_density);
  return MakeError(failure.code(), sentence + ")", std::move(detail));
}

absl::Status NameWithoutRecall(const absl::Status& failure) {
  ErrorDetail detail = GetErrorDetail(failure);
  detail.metadata["nearest_request"] = "no z_recall";
  return MakeError(failure.code(),
                   absl::StrCat(failure.message(), "; the nearest request: no z_recall"),
                   std::move(detail));
}

}  // namespace eta
