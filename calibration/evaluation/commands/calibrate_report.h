// The outcome of a calibration, as a table for people and as JSON for programs.
#pragma once

#include <string>

#include "calibration/calibrate/calibrator.h"

namespace eta {

struct CalibrationRun {
  std::string model;
  std::string text;
  std::string backend;
  std::string output;
  double seconds = 0.0;
  bool lacks_index_metric = false;  // LacksIndexMetric
};

// "match_dynamic", "union_density 0.35"
std::string TargetName(const ProfileTarget& target);

// Full, dynamic and frozen attention beside each other on the held-out sequences, and the densities
// reached on the calibration sequences.
std::string CalibrationTable(const CalibrationRun& run, const CalibrationResult& result);

// One JSON object. Values that were not measured are null.
std::string CalibrationJson(const CalibrationRun& run, const CalibrationResult& result);

}  // namespace eta
