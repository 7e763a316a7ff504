// Frozen thresholds in a file: a profile as it is exported (profile_format.md), or thresholds
// alone, for evaluation by hand: {"name": "...", "thresholds": [[number, ... HQ], ... L]}, nothing
// else.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/request/threshold_profile.h"

namespace eta {

// InvalidArgument, naming the field, for a file that says anything else; NotFound for none; those
// of ProfileFromJson for a file with a field "format".
absl::StatusOr<ThresholdProfile> ReadProfileFile(const std::string& path);

}  // namespace eta
