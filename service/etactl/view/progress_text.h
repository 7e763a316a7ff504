// The progress of a calibration as text for people.
#pragma once

#include <string>

#include "eta/v1/calibrate.pb.h"

namespace eta::ctl {

// "1/4 collecting scores".
std::string PhaseName(v1::CalibrationPhase phase);

// "8123 tokens/s, about 31.0 s left"; unknown parts are left out.
std::string DescribeSpeed(const v1::CalibrationProgress& progress);

// "1/4 collecting scores, 6/12 sequences, 4120 tokens/s, about 21.3 s left"; unknown parts are left
// out.
std::string DescribeProgress(const v1::CalibrationProgress& progress);

}  // namespace eta::ctl
