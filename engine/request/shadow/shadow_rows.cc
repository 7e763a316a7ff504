#include "engine/request/shadow/shadow_rows.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

namespace eta {
namespace {

float Mean(std::span<const float> values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return static_cast<float>(sum / static_cast<double>(values.size()));
}

bool Before(const ShadowRow& a, const ShadowRow& b) {
  return std::tie(a.layer, a.row) < std::tie(b.layer, b.row);
}

}  // namespace

ShadowRows::ShadowRows(int32_t num_layers, int32_t num_query_heads)
    : num_query_heads_(static_cast<size_t>(num_query_heads)),
      layers_(static_cast<size_t>(num_layers)) {}

void ShadowRows::Clear() {
  rows_.clear();
  keys_ = 0;
}

bool ShadowRows::Add(const ShadowRow& row) {
  const auto at = std::lower_bound(rows_.begin(), rows_.end(), row, Before);
  if (at != rows_.end() && !Before(row, *at)) return false;
  rows_.insert(at, row);
  keys_ += row.kv_len;
  return true;
}

std::span<const ShadowLayer> ShadowRows::Layers() {
  if (rows_.empty()) return {};
  constexpr float kUnmeasured = std::numeric_limits<float>::quiet_NaN();
  indices_.clear();
  for (const ShadowRow& row : rows_) indices_.push_back(row.row);
  mass_.assign(rows_.size() * num_query_heads_, kUnmeasured);
  error_.assign(rows_.size() * num_query_heads_, kUnmeasured);
  std::fill(layers_.begin(), layers_.end(), ShadowLayer{});
  for (size_t begin = 0; begin < rows_.size();) {
    const int32_t layer = rows_[begin].layer;
    size_t end = begin;
    while (end < rows_.size() && rows_[end].layer == layer) ++end;
    layers_[static_cast<size_t>(layer)] = {.rows = std::span(indices_).subspan(begin, end - begin),
                                           .mass = mass_.data() + begin * num_query_heads_,
                                           .error = error_.data() + begin * num_query_heads_};
    begin = end;
  }
  return layers_;
}

void ShadowRows::Read() {
  for (size_t i = 0; i < rows_.size(); ++i) {
    const auto heads = [&](const std::vector<float>& values) {
      return std::span(values).subspan(i * num_query_heads_, num_query_heads_);
    };
    // Last bits may put it above 1.
    rows_[i].mass = Mean(heads(mass_));
    if (rows_[i].mass > 1.0f) rows_[i].mass = 1.0f;
    rows_[i].error = Mean(heads(error_));
  }
}

const ShadowRow* ShadowRows::Find(int32_t layer, int32_t row) const {
  const auto at =
      std::lower_bound(rows_.begin(), rows_.end(), ShadowRow{.layer = layer, .row = row}, Before);
  return at == rows_.end() || Before(ShadowRow{.layer = layer, .row = row}, *at) ? nullptr : &*at;
}

}  // namespace eta
