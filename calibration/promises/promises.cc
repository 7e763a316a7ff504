#include "calibration/promises/promises.h"

#include <algorithm>
#include <map>
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

std::map<std::string, std::string> Counts(const NeedleHits& hits) {
  return {{"needles_full", absl::StrCat(hits.full)}, {"needles_kept", absl::StrCat(hits.kept)}};
}

absl::Status JudgeRetrieval(double least, const NeedleHits& hits) {
  const double kept =
      hits.full > 0 ? static_cast<double>(hits.kept) / static_cast<double>(hits.full) : 0.0;
  if (kept >= least) return absl::OkStatus();
  std::map<std::string, std::string> metadata = Counts(hits);
  metadata["target"] = absl::StrCat(least);
  metadata["nearest"] = absl::StrCat(kept);
  const std::string sentence =
      hits.full > 0 ? absl::StrFormat(
                          "wanted at least %g of the needles that full attention finds, "
                          "kept %d of %d",
                          least, hits.kept, hits.full)
                    : absl::StrFormat(
                          "full attention finds none of the %d needles, so that nothing "
                          "can be promised",
                          hits.asked);
  return MakeError(
      absl::StatusCode::kFailedPrecondition, absl::StrCat("min_retrieval: ", sentence),
      {.reason = "TARGET_UNREACHABLE", .field = "min_retrieval", .metadata = std::move(metadata)});
}

}  // namespace

absl::Status JudgePromises(const CalibrationJob& job, const ProfileEvidence& evidence) {
  const NeedleHits hits = AllNeedles(evidence);
  if (job.min_retrieval) RETURN_IF_ERROR(JudgeRetrieval(*job.min_retrieval, hits));
  if (job.allow_loss) return absl::OkStatus();
  const double increase = (evidence.perplexity_frozen / evidence.perplexity_full - 1.0) * 100.0;
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
      absl::StrCat("the profile would lose too much: ", absl::StrJoin(losses, ", and "),
                   "; ask for a denser one, or set allow_loss"),
      {.reason = "PROFILE_LOSES", .metadata = std::move(metadata)});
}

}  // namespace eta
