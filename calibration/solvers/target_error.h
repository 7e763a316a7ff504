// The error for a target that no setting meets on the calibration data.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"

namespace eta {

// FailedPrecondition, reason TARGET_UNREACHABLE: "field: wanted ..., the nearest reachable is ...".
// The metadata has both numbers (`target`, `nearest`) and `more`.
absl::Status TargetUnreachable(const std::string& field, double target, double nearest,
                               std::map<std::string, std::string> more = {});

}  // namespace eta
