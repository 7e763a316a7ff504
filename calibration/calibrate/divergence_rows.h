// The rows whose divergence from full attention is measured (solvers/divergence.h). The logits of
// all rows would not fit in memory: a row of a vocabulary of 152K takes 0.6 MB.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibration/calibrate/calibration_passes.h"

namespace eta {

// The most rows of a sample. Fewer if their logits would take more than kMaxPassLogitBytes.
inline constexpr int64_t kMaxDivergenceRows = 1024;

struct DivergenceRows {
  std::vector<std::vector<int32_t>> of_sequence;  // ascending; each row has a loss
  int block = 1;  // rows of kIntervalBlock tokens: blocks of an interval
};

// An even sample of the measured rows of the sequences (MeasuredTokens), or all of them.
DivergenceRows ChooseDivergenceRows(TokenSpans sequences, int32_t vocab_size);

}  // namespace eta
