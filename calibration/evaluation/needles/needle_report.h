// The outcome of a needle evaluation, as a table for people and as JSON for programs.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "calibration/evaluation/needles/needle_evaluation.h"

namespace eta {

struct NeedlesRun {
  std::string model;
  std::string text;
  std::string backend;
  std::string index;  // kind of records
  int32_t context = 0;
  int32_t prefill = 0;  // 0: all before the question
  int32_t keys = 1;
};

// One line per attention, with a sign per window in the order of depths: + a hit, - none.
std::string NeedlesTable(const NeedlesRun& run, std::span<const NeedleWindow> windows,
                         std::span<const EvaluatedAttention> attentions,
                         std::span<const NeedleScore> scores);

std::string NeedlesJson(const NeedlesRun& run, std::span<const NeedleWindow> windows,
                        std::span<const EvaluatedAttention> attentions,
                        std::span<const NeedleScore> scores);

}  // namespace eta
