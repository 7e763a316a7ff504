// Thresholds frozen by calibration: one constant per layer and query head in place of the
// predictor's output (eta-semantics.md, "Profile"). Immutable once made; shared by the requests
// that use it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace eta {

struct ThresholdProfile {
  std::string name;
  int64_t version = 0;
  int32_t num_layers = 0;
  int32_t num_query_heads = 0;
  std::vector<float> thresholds;  // [L, HQ]
};

}  // namespace eta
