// What an operator may choose about metrics.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace eta {

struct TelemetryOptions {
  static constexpr int kMaxLabels = 1024;

  // Names with labels of their own; none: the `label_limit` ones that were used last
  // (label_names.h).
  std::vector<std::string> profiles;
  std::vector<std::string> tenants;
  int label_limit = 64;     // 0 to kMaxLabels
  bool vllm_names = false;  // some series also have other servers' names (VllmNames)
};

}  // namespace eta
