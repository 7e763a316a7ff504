// Parameters at which arms read as much as another one does. They are looked for on a few of the
// windows, which costs little, and then measured on all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eta {

// The name of an arm at a parameter in (0, 1).
using ArmFamily = std::function<std::string(double)>;

// What arms are measured on: a few windows (or questions) of a text, or all of them.
enum class Portion { kFew, kAll };
// How many of so many are few.
inline int32_t FewOf(size_t count) {
  return static_cast<int32_t>(std::max(count / 8, size_t{1}));
}

// Measures the arms of these names that were not measured yet.
using MeasureArms =
    std::function<absl::Status(std::span<const std::string> names, Portion portion)>;

// Parameters at which arms of one family were measured on each portion. Searches share them.
struct TriedArms {
  std::vector<double> few;
  std::vector<double> all;
};

struct ReadsWanted {
  const ArmFamily& family;
  double reads = 0.0;
  // What an arm that was measured reads, by any measure from 0 to about 1. It must grow with the
  // parameter.
  std::function<double(const std::string& name, Portion portion)> of;
  TriedArms& tried;
};

struct MatchedArm {
  std::string name;
  double at = 0.0;     // its parameter
  double reads = 0.0;  // what is matched, of all windows
};

// One arm each: within 0.003 of what is wanted of all windows, or as near as five measurements of
// all windows bring it. Every round measures in one call; a family is measured on all windows once
// a round. Those in `tried` are measured first; what was tried is added.
absl::StatusOr<std::vector<MatchedArm>> MatchReads(std::span<const ReadsWanted> wanted,
                                                   const MeasureArms& measure);

}  // namespace eta
