// A result held against the expectations that a case file carries.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace eta {

struct Comparison {
  bool equal = true;   // within the tolerance
  std::string report;  // one line per tensor that both files hold
};

// Compares the tensors that both safetensors files hold, by name: integers must be equal, floating
// point must differ by `tolerance` at most, shapes must agree. FailedPrecondition if there is none.
absl::StatusOr<Comparison> CompareFiles(const std::string& expected, const std::string& actual,
                                        double tolerance);

}  // namespace eta
