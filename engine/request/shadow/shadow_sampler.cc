#include "engine/request/shadow/shadow_sampler.h"

#include <algorithm>

#include "engine/base/random.h"

namespace eta {
namespace {

constexpr uint64_t kSeed = 0x5eed0f5bad0;  // any

size_t Below(size_t count, uint64_t index) {
  const auto drawn = static_cast<size_t>(UniformDraw(kSeed, index) * static_cast<double>(count));
  return std::min(drawn, count - 1);
}

}  // namespace

int64_t ShadowSampler::Draw(std::span<const ShadowRow> rows, ShadowRows& out) const {
  if (begun_ % kPeriod != kDrawAt || rows.empty() || costs_.layers.empty()) return 0;
  int64_t drawn = 0;
  double bytes = bytes_;
  for (int i = 0; i < kMostDraws && i + 1 <= rows_ && bytes > 0.0; ++i) {
    const auto index = static_cast<uint64_t>(begun_ * kMostDraws + i) * 2;
    ShadowRow row = rows[Below(rows.size(), index)];
    row.layer = costs_.layers[Below(costs_.layers.size(), index + 1)];
    if (!out.Add(row)) continue;
    ++drawn;
    bytes -= static_cast<double>(row.kv_len) * static_cast<double>(costs_.key_bytes);
  }
  return drawn;
}

void ShadowSampler::Finish(int64_t number, const Work& work) {
  if (number / kPeriod != period_) {
    period_ = number / kPeriod;
    rows_ = std::min(rows_ + earned_rows_, 2.0 * earned_rows_ + 1.0);
    bytes_ = std::min(bytes_ + earned_bytes_, kPeriodsKept * earned_bytes_);
    earned_rows_ = 0.0;
    earned_bytes_ = 0.0;
  }
  earned_rows_ +=
      costs_.rate * static_cast<double>(work.rows) * static_cast<double>(costs_.layers.size());
  earned_bytes_ += kShare * static_cast<double>(work.kv_bytes + costs_.step_bytes);
  rows_ -= static_cast<double>(work.drawn);
  const auto key_bytes = static_cast<double>(costs_.key_bytes);
  bytes_ -= static_cast<double>(work.drawn_keys) * key_bytes;
  if (bytes_ > 0.0) {
    bytes_ = std::max(0.0, bytes_ - static_cast<double>(work.guarded_keys) * key_bytes);
  }
}

}  // namespace eta
