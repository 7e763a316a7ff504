// Measures how well an index finds the keys above the threshold (the paper's table "Effect of
// variance dilution"). The bound alone decides: no block is a sink, pinned or rescued.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "calibration/evaluation/tables/measures/block_bounds.h"
#include "calibration/evaluation/tables/measures/recorded_attention.h"

namespace eta {

// What IndexQualitySums adds up over the recorded rows and query heads of a layer. A full block is
// admitted iff its bound is >= tau_eff; the partial tail always is.
inline constexpr size_t kNeeded = 0;         // full blocks with a key S >= tau_eff
inline constexpr size_t kFalseNegative = 1;  // of those, the rejected ones
inline constexpr size_t kUnneeded = 2;       // full blocks without
inline constexpr size_t kFalsePositive = 3;  // of those, the admitted ones
inline constexpr size_t kAbove = 4;          // keys with S >= tau_eff
inline constexpr size_t kAboveAdmitted = 5;  // of those, the ones in admitted blocks and the tail
inline constexpr size_t kMissedMass = 6;     // full attention's softmax in rejected blocks
inline constexpr size_t kAttended = 7;       // keys in admitted blocks and the tail, over T
inline constexpr size_t kIndexTerms = 8;     // rows and heads: terms of the last two
inline constexpr size_t kIndexSums = 9;

// The sums of each of `indices` over the same rows, [indices][kIndexSums].
std::vector<std::vector<double>> IndexQualitySums(const RecordedWindow& window,
                                                  const RecordedLayer& layer,
                                                  std::span<const BlockBounds> indices);

}  // namespace eta
