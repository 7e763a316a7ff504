// The outcome of a perplexity evaluation, as a table for people and as JSON for programs.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "calibration/evaluation/attention/attention_comparison.h"
#include "calibration/evaluation/perplexity/perplexity.h"

namespace eta {

// A table with one line per attention, and a line on how the intervals are made.
std::string PerplexityTable(const ComparisonFlags& flags, const AttentionComparison& comparison,
                            int64_t windows, std::span<const AttentionScore> scores);

// One JSON object. Values that were not measured are null.
std::string PerplexityJson(const ComparisonFlags& flags, const AttentionComparison& comparison,
                           int64_t windows, std::span<const AttentionScore> scores);

}  // namespace eta
