#include "calibration/calibrate/perplexity_increase.h"

#include <algorithm>
#include <cmath>

#include "calibration/calibrate/calibration_passes.h"

namespace eta {
namespace {

double Percent(double difference_of_losses) {
  return std::expm1(difference_of_losses) * 100.0;
}

template <typename Sequences>
int64_t Sum(const Sequences& sequences) {
  int64_t tokens = 0;
  for (const auto& sequence : sequences) {
    const auto after = static_cast<int64_t>(sequence.size()) - DecodeFrom(sequence) - 1;
    if (after > 0) tokens += after;
  }
  return tokens;
}

std::optional<PercentInterval> PercentOf(const MeanInterval& mean) {
  if (!mean.half_width) return std::nullopt;
  const PercentInterval interval = {.low = Percent(mean.mean - *mean.half_width),
                                    .high = Percent(mean.mean + *mean.half_width)};
  if (!std::isfinite(interval.low) || !std::isfinite(interval.high)) return std::nullopt;
  return interval;
}

}  // namespace

PerplexityIncrease IncreaseOver(const DecodeMeasurement& base, const DecodeMeasurement& measured) {
  PerplexityIncrease increase = {.percent = (measured.perplexity / base.perplexity - 1.0) * 100.0,
                                 .interval = {}};
  if (base.losses.size() != measured.losses.size()) return increase;
  std::vector<float> differences(measured.losses.size());
  for (size_t i = 0; i < differences.size(); ++i) {
    differences[i] = measured.losses[i] - base.losses[i];
  }
  increase.interval = PercentOf(BlockMeanInterval(differences));
  return increase;
}

PerplexityIncrease IncreaseByDivergence(const MeasuredDivergence& divergence) {
  return {.percent = Percent(divergence.nats),
          .interval = PercentOf(BlockMeanInterval(divergence.rows, divergence.block))};
}

double JudgedIncrease(const DecodeMeasurement& full, const DecodeMeasurement& measured,
                      bool upper) {
  const auto percent = [upper](const PerplexityIncrease& increase) {
    return upper && increase.interval ? increase.interval->high : increase.percent;
  };
  const double of_text = percent(IncreaseOver(full, measured));
  if (!measured.divergence) return of_text;
  return std::max(of_text, percent(IncreaseByDivergence(*measured.divergence)));
}

int64_t MeasuredTokens(std::span<const std::vector<int32_t>> sequences) {
  return Sum(sequences);
}

int64_t MeasuredTokens(std::span<const std::span<const int32_t>> sequences) {
  return Sum(sequences);
}

}  // namespace eta
