// What RULER's tasks hide their statements among, and where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "calibration/needles/draws.h"

namespace eta {

// A unit of a haystack: a sentence or a line.
using RulerUnit = std::function<std::string(size_t index)>;

inline constexpr std::string_view kRulerNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

// A statement lies at one of so many places, evenly spread from the beginning to the end.
inline constexpr uint64_t kRulerDepths = 40;
// Different ones, ascending. REQUIRES: count <= kRulerDepths.
std::vector<uint64_t> DrawDepths(size_t count, Draws& draws);

// `units` units with the statements between them, in their order. REQUIRES: as many ascending
// depths as statements.
std::string HideStatements(const RulerUnit& unit, size_t units,
                           std::span<const std::string> statements,
                           std::span<const uint64_t> depths, const std::string& separator);

}  // namespace eta
