// How far the perplexity of one way to attend lies above another's, of the same tokens or of text
// that the other would write.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "calibration/calibrate/decode_measurement.h"
#include "calibration/profiles/profile_record.h"
#include "calibration/solvers/interval.h"

namespace eta {

struct PerplexityIncrease {
  double percent = 0.0;
  // 95 %, of the losses token by token (interval.h). Absent: fewer than kMinVerdictTokens, or
  // losses that are not finite.
  std::optional<PercentInterval> interval;
};

// Both must have been measured with perplexity, on the same sequences.
PerplexityIncrease IncreaseOver(const DecodeMeasurement& base, const DecodeMeasurement& measured);

// The increase on text that full attention itself would write: exp(KL) - 1, so never below 0. Of
// the same kind as that of a text, which may fall below it where leaving out keys happens to help.
PerplexityIncrease IncreaseByDivergence(const MeasuredDivergence& divergence);

// Percent, of what a bound is judged by: the increase over `full`, and if it was measured that by
// divergence, whichever is larger. `upper`: by the upper ends of their intervals, where there are.
double JudgedIncrease(const DecodeMeasurement& full, const DecodeMeasurement& measured, bool upper);

// On fewer tokens no perplexity is judged: they have no interval.
inline constexpr int64_t kMinVerdictTokens = int64_t{kMinIntervalBlocks} * kIntervalBlock;

// Tokens that a measurement of the sequences compares: all after the first row of the second half.
int64_t MeasuredTokens(std::span<const std::vector<int32_t>> sequences);
int64_t MeasuredTokens(std::span<const std::span<const int32_t>> sequences);

}  // namespace eta
