// The softmax's mass on the first tokens of a sequence, attention sinks (the paper's figure
// "Mechanistic Dynamics of Attention in ETA", left, and its appendix on sinks): full attention's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "calibration/evaluation/tables/measures/recorded_attention.h"

namespace eta {

inline constexpr int32_t kSinkTokens = 4;  // positions 0 .. 3, as in the paper

// What SinkMassSums adds up, of every recorded row and query head.
inline constexpr size_t kSinkRaw = 0;      // mass before the gate: of softmax(S)
inline constexpr size_t kSinkGated = 1;    // mass after the gate
inline constexpr size_t kSinkUniform = 2;  // 4 / T: what even weights would give
inline constexpr size_t kSinkTerms = 3;
inline constexpr size_t kSinkSums = 4;

// Sums over the rows with at least kSinkTokens keys before their own.
std::vector<double> SinkMassSums(const RecordedWindow& window, const RecordedLayer& layer);

}  // namespace eta
