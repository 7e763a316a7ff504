// The outcome of a needle evaluation, as a table for people and as JSON for programs.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "calibration/evaluation/attention/attention_comparison.h"
#include "calibration/evaluation/needles/needle_evaluation.h"

namespace eta {

// One line per attention, with a sign per window in the order of depths: + a hit, - none.
std::string NeedlesTable(const ComparisonFlags& flags, const AttentionComparison& comparison,
                         int32_t keys, std::span<const NeedleWindow> windows,
                         std::span<const NeedleScore> scores);

std::string NeedlesJson(const ComparisonFlags& flags, const AttentionComparison& comparison,
                        int32_t keys, std::span<const NeedleWindow> windows,
                        std::span<const NeedleScore> scores);

}  // namespace eta
