// Where quantised blocks keep their float16 numbers.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/weights/ggml_type.h"

namespace eta::testing {

// Where the float16 numbers of a block begin: its scale and, of some types, its minimum.
inline std::vector<size_t> HalvesOf(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_1:
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K:
      return {0, 2};
    case GgmlType::kQ6_K:
      return {208};
    case GgmlType::kMXFP4:  // its scale is a byte
      return {};
    default:
      return {0};
  }
}

}  // namespace eta::testing
