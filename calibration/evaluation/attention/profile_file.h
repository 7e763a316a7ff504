// Frozen thresholds in a file: an exported profile (profile_format.md), or thresholds alone for
// evaluation by hand. The latter is {"name": "...", "thresholds": [[number, ... HQ], ... L]} and
// nothing else.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/request/threshold_profile.h"

namespace eta {

// InvalidArgument, naming the field, for any other contents. NotFound if there is no file. The
// errors of ProfileFromJson for a file with a field "format".
absl::StatusOr<ThresholdProfile> ReadProfileFile(const std::string& path);

}  // namespace eta
