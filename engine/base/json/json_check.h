// What every JSON file of a checkpoint must satisfy before its contents are looked at.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace eta {

struct JsonLimits {
  size_t max_bytes;
  size_t max_depth;
};

// One JSON object in UTF-8, within the limits, with no key twice in any object, also if spelled
// with escapes. INVALID_ARGUMENT, the sentence starting with `what`. Uses no recursion.
absl::Status CheckJson(const std::string& what, std::string_view text, const JsonLimits& limits);

}  // namespace eta
