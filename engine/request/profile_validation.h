// Checks a threshold profile against the model that is to run under it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/request/engine_info.h"
#include "engine/request/threshold_profile.h"

namespace eta {

// FAILED_PRECONDITION with reason PROFILE_MISMATCH, its metadata naming what differs, for a profile
// of another model, tokenizer, block size, sub-block or kind of index, for tables that are not [L,
// HQ], and for values that no calibration gives: thresholds that are not finite, z and offset out
// of bounds.
absl::Status ValidateProfile(const ThresholdProfile& profile, const EngineInfo& model);

// A format that a profile was calibrated with, and the one that is served.
struct ProfileDifference {
  std::string what;  // "kv_dtype" or "weights"
  std::string profile;
  std::string served;
  friend bool operator==(const ProfileDifference&, const ProfileDifference&) = default;
};

// What differs and does not keep the profile from being used: formats shift scores a little.
std::vector<ProfileDifference> DifferencesOf(const ThresholdProfile& profile,
                                             const EngineInfo& model);

}  // namespace eta
