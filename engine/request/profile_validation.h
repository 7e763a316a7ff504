// Checks a threshold profile against the model that is to run under it.
#pragma once

#include "absl/status/status.h"
#include "engine/request/engine_info.h"
#include "engine/request/threshold_profile.h"

namespace eta {

// FAILED_PRECONDITION with reason PROFILE_MISMATCH, its metadata naming what differs, for a profile
// of another model, tokenizer, block size or sub-block, for tables that are not [L, HQ], and for
// values that no calibration gives: thresholds that are not finite, z and offset out of bounds.
absl::Status ValidateProfile(const ThresholdProfile& profile, const EngineInfo& model);

}  // namespace eta
