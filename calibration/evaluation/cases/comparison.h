// Compares a result with the expectations in a case file.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace eta {

struct Comparison {
  bool equal = true;   // all differences are within the tolerance
  std::string report;  // one line per tensor that is in both files
};

// Compares, by name, the tensors that are in both safetensors files. Integers must be equal,
// floating-point numbers may differ by `tolerance`, and shapes must agree. FailedPrecondition if no
// tensor is in both.
absl::StatusOr<Comparison> CompareFiles(const std::string& expected, const std::string& actual,
                                        double tolerance);

}  // namespace eta
