// Converts a stored profile for the engine: thresholds and z to the bit; offset, z and floor as the
// defaults of a request. This is the only way from a profile to a request.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "calibration/profiles/profile_record.h"
#include "engine/request/threshold_profile.h"

namespace eta {

// REQUIRES: CheckProfileContent passed.
std::shared_ptr<const ThresholdProfile> ThresholdProfileOf(const ProfileContent& content,
                                                           std::string name, int64_t version);

inline std::shared_ptr<const ThresholdProfile> ThresholdProfileOf(const ProfileRecord& record) {
  return ThresholdProfileOf(record.content, record.name, record.version);
}

}  // namespace eta
