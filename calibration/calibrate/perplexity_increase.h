// How far the perplexity of one way to attend lies above another's, of the same tokens.
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

// On fewer tokens no perplexity is judged: they have no interval.
inline constexpr int64_t kMinVerdictTokens = int64_t{kMinIntervalBlocks} * kIntervalBlock;

// Tokens that a measurement of the sequences compares: all after the first row of the second half.
int64_t MeasuredTokens(std::span<const std::vector<int32_t>> sequences);
int64_t MeasuredTokens(std::span<const std::span<const int32_t>> sequences);

}  // namespace eta
