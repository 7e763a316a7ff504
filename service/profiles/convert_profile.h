// Conversion between stored profiles and the messages of the wire.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "calibration/profiles/profile_store.h"
#include "eta/v1/profiles.pb.h"

namespace eta {

v1::Profile ToMessage(const ProfileRecord& record);
v1::ProfileSummary ToMessage(const ProfileSummary& summary);

// INVALID_ARGUMENT naming a field below `field`: none set, or outside its limits.
absl::StatusOr<ProfileTarget> ToTarget(const std::string& field, const v1::CalibrationTarget& in);

}  // namespace eta
