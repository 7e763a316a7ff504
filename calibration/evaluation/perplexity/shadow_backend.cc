#include "calibration/evaluation/perplexity/shadow_backend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace eta {

void ShadowBackend::Begin(double share) {
  share_ = share;
  seen_ = 0;
  measured_ = 0;
  masses_.clear();
  errors_ = 0.0;
}

std::optional<ShadowSummary> ShadowBackend::Summary() const {
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

void ShadowBackend::Plan(const BatchView& batch) {
  rows_.clear();
  step_.clear();
  for (const SequenceRows& sequence : batch.sequences) {
    if (sequence.kind != RowKind::kDecode || sequence.attention.admit_all) continue;
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      const double before = std::floor(share_ * static_cast<double>(seen_));
      if (std::floor(share_ * static_cast<double>(++seen_)) > before) {
        rows_.push_back(sequence.row_begin + i);
      }
    }
  }
  ForwardingBackend::Plan(batch);
}

void ShadowBackend::DecodeAttention(const AttentionParams& params) {
  ForwardingBackend::DecodeAttention(params);
  if (rows_.empty()) return;
  const size_t cells = rows_.size() * static_cast<size_t>(params.num_query_heads);
  step_.push_back(std::make_unique<Layer>());
  Layer& layer = *step_.back();
  layer.mass.resize(cells);
  layer.error.resize(cells);
  MeasureShadow({params, rows_, layer.mass.data(), layer.error.data()});
}

absl::Status ShadowBackend::Finish() {
  absl::Status status = ForwardingBackend::Finish();
  if (status.ok() && !step_.empty()) {
    measured_ += static_cast<int64_t>(rows_.size());
    for (const auto& layer : step_) {
      const auto heads = static_cast<std::ptrdiff_t>(layer->mass.size() / rows_.size());
      for (size_t row = 0; row < rows_.size(); ++row) {
        const auto mean = [&](const std::vector<float>& values) {
          const auto first = values.begin() + static_cast<std::ptrdiff_t>(row) * heads;
          return std::accumulate(first, first + heads, 0.0) / static_cast<double>(heads);
        };
        masses_.push_back(static_cast<float>(mean(layer->mass)));
        errors_ += mean(layer->error);
      }
    }
  }
  step_.clear();
  rows_.clear();
  return status;
}

}  // namespace eta
