#include "calibration/evaluation/perplexity/shadow_meter.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace eta {

ShadowMeter::ShadowMeter(const ModelConfig& config, double share)
    : layers_(config.full_layers()),
      sample_(share),
      step_(config.num_layers, config.num_query_heads) {}

std::span<const ShadowLayer> ShadowMeter::Choose(size_t rows, int32_t position) {
  std::vector<int32_t> chosen;
  for (int32_t row = 0; row < static_cast<int32_t>(rows); ++row) {
    if (sample_.TakesNext()) chosen.push_back(row);
  }
  measured_ += static_cast<int64_t>(chosen.size());
  step_.Clear();
  for (const int32_t layer : layers_) {
    for (const int32_t row : chosen) {
      step_.Add({.layer = layer, .row = row, .kv_len = position + row + 1});
    }
  }
  return step_.Layers();
}

void ShadowMeter::Absorb() {
  step_.Read();
  for (const ShadowRow& row : step_.rows()) {
    masses_.push_back(row.mass);
    errors_ += row.error;
  }
}

std::optional<ShadowSummary> ShadowMeter::Summary() const {
  if (masses_.empty()) return std::nullopt;
  const auto count = static_cast<double>(masses_.size());
  std::vector<float> sorted = masses_;
  const auto least = sorted.begin() + static_cast<std::ptrdiff_t>(masses_.size() / 100);
  std::nth_element(sorted.begin(), least, sorted.end());
  return ShadowSummary{.rows = measured_,
                       .mass = std::accumulate(masses_.begin(), masses_.end(), 0.0) / count,
                       .least_mass = *least,
                       .error = errors_ / count};
}

}  // namespace eta
