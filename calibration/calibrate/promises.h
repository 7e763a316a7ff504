// The promises of a profile, whatever its target. The held-out documents and the needles in them
// decide whether it may be stored.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "calibration/calibrate/calibrator.h"
#include "calibration/profiles/profile_record.h"
#include "calibration/solvers/interval.h"

namespace eta {

// The most that a profile may cost without allow_loss: percent of full attention's perplexity. A
// target max_perplexity_increase above this takes its place.
inline constexpr double kMaxLossPercent = 3.0;

// FailedPrecondition:
//   TARGET_UNREACHABLE (field min_retrieval)  of the needles that full attention finds, a smaller
//       share than job.min_retrieval is kept, or full attention finds none. Metadata: target,
//       nearest, and what is said of the needles.
//   PROFILE_LOSES  without job.allow_loss: the perplexity is further above full attention's than it
//       may be; or, without job.min_retrieval, a needle that full attention finds is lost.
//       Metadata: increase and max_increase in percent, and what is said of the needles.
// Of the needles metadata has needles_full, needles_kept and, where full attention finds any,
// kept_low and kept_high, the interval of KeptShare.
absl::Status JudgePromises(const CalibrationJob& job, const ProfileEvidence& evidence);

// True if the held-out documents are too short for a verdict (kMinVerdictTokens): their evidence
// has no interval. Only a job with allow_loss makes such a profile (PrepareJob).
bool Unverified(const ProfileEvidence& evidence);

// True if dynamic thresholds read no more on the held-out documents and cost no more perplexity.
// Then a request does better without the profile. Never of a model without a predictor, nor of
// unverified evidence.
bool DynamicDominates(const ProfileEvidence& evidence);

// True if a profile that Calibrate made must not become the newest one by itself: dynamic
// thresholds dominate it, or it keeps the target dynamic_union_density and loses needles. Never
// with allow_loss.
bool ToBeStaged(const CalibrationJob& job, const ProfileEvidence& evidence);

// Needles of both kinds together; zeros if none were hidden.
NeedleHits AllNeedles(const ProfileEvidence& evidence);

// The 95 % interval of the share of the needles which full attention finds that is kept. Absent:
// full attention finds none, so that nothing is judged.
std::optional<ShareInterval> KeptShare(const NeedleHits& hits);

// `failure`, of JudgePromises, JudgeHeldOut or a search, with the nearest request that would pass
// at its end: the job with the target union_density, by which the profile of `evidence` is asked
// for, and what else must change for it. Metadata also has nearest_request, as in
// "union_density=0.41, allow_loss=true", and what it would come to on the held-out documents:
// nearest_increase, in percent over full attention, and nearest_reads, the union density there.
absl::Status NameNearest(const absl::Status& failure, const CalibrationJob& job,
                         double union_density, const ProfileEvidence& evidence);

// `failure` of z_recall with the nearest request at its end, and as nearest_request: "no z_recall".
// Nothing was measured of it.
absl::Status NameWithoutRecall(const absl::Status& failure);

}  // namespace eta
