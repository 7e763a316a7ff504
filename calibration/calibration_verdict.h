// What the held-out sequences say of a profile. They took no part in choosing it, and nothing is
// chosen on them here: a bound that they exceed ends the calibration.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/calibrator.h"
#include "calibration/decode_measurement.h"
#include "calibration/profiles/profile_record.h"

namespace eta {

// Sets what was measured on the held-out sequences, with its intervals. The counts are left as they
// are.
void SetMeasurements(const CalibrationResult& result, ProfileEvidence& evidence);

// Measures the held-out sequences with every threshold lowered by so much.
using MeasureDenser = std::function<absl::StatusOr<DecodeMeasurement>(double lowered)>;

// OK if the target bounds nothing, or what was measured is within the bound.
// FailedPrecondition, TARGET_UNREACHABLE, otherwise; metadata has `increase`, `low` and `high`, its
// 95 % interval, `bound`, all in percent, and `target` and `nearest` in the unit of the target:
//   max_perplexity_increase  the bound and the measured increase
//   dynamic_union_density    dynamic thresholds' union density and the nearest denser one that was
//                            found to keep the bound, else the one that came nearest to it. Only
//                            for this error is `denser` called.
//   retained_mass            the share and that of the held-out documents, likewise if the latter
//   is
//                            less (instead of the others `p1`). REQUIRES: result.frozen.mass.
// Errors of `denser` are returned unchanged.
absl::Status JudgeHeldOut(const ProfileTarget& target, const CalibrationResult& result,
                          const MeasureDenser& denser);

}  // namespace eta
