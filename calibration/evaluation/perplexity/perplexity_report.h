// The outcome of a perplexity evaluation, as a table for people and as JSON for programs.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "calibration/evaluation/perplexity/perplexity.h"

namespace eta {

struct PerplexityRun {
  std::string model;
  std::string text;
  std::string backend;
  std::string kv_dtype;
  std::string index;  // kind of records
  std::string index_dtype;
  std::string weights;
  int32_t context = 0;
  int32_t prefill = 0;
  int64_t windows = 0;
};

// A table with one line per attention, and a line on how the intervals are made.
std::string PerplexityTable(const PerplexityRun& run,
                            std::span<const EvaluatedAttention> attentions,
                            std::span<const AttentionScore> scores);

// One JSON object. Values that were not measured are null.
std::string PerplexityJson(const PerplexityRun& run, std::span<const EvaluatedAttention> attentions,
                           std::span<const AttentionScore> scores);

}  // namespace eta
