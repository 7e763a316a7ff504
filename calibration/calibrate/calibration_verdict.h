// The verdict of the held-out sequences on a profile. They took no part in choosing it.
#pragma once

#include "absl/status/status.h"
#include "calibration/calibrate/calibrator.h"
#include "calibration/profiles/profile_record.h"

namespace eta {

// Sets what was measured on the held-out sequences, with its intervals. The counts are left as they
// are.
void SetMeasurements(const CalibrationResult& result, ProfileEvidence& evidence);

// OK if the target bounds nothing, or what was measured is within the bound. An increase over full
// attention is judged by the text and, if it was measured, by the divergence.
// FailedPrecondition, TARGET_UNREACHABLE, otherwise; metadata has `target`, the bound, and
// `nearest`, what was measured: an increase in percent, with `low` and `high`, its 95 % interval,
// or a retained mass, with `p1`. REQUIRES of the target retained_mass: result.frozen.mass.
absl::Status JudgeHeldOut(const ProfileTarget& target, const CalibrationResult& result);

}  // namespace eta
