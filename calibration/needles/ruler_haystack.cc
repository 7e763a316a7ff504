#include "calibration/needles/ruler_haystack.h"

#include <algorithm>

#include "absl/strings/str_join.h"

namespace eta {

std::vector<uint64_t> DrawDepths(size_t count, Draws& draws) {
  std::vector<uint64_t> depths;
  while (depths.size() < count) {
    const uint64_t depth = draws.Below(kRulerDepths);
    if (std::ranges::find(depths, depth) == depths.end()) depths.push_back(depth);
  }
  std::ranges::sort(depths);
  return depths;
}

std::string HideStatements(const RulerUnit& unit, size_t units,
                           std::span<const std::string> statements,
                           std::span<const uint64_t> depths, const std::string& separator) {
  std::vector<std::string> parts;
  size_t hidden = 0;
  for (size_t i = 0; i <= units; ++i) {
    while (hidden < statements.size() && depths[hidden] * units / (kRulerDepths - 1) <= i) {
      parts.push_back(statements[hidden++]);
    }
    if (i < units) parts.push_back(unit(i));
  }
  return absl::StrJoin(parts, separator);
}

}  // namespace eta
