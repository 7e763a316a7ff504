#include "calibration/evaluation/rivals/constants.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace eta {
namespace {

class Fit {
 public:
  Fit(const std::vector<SampledBounds>& sample, const ConstantsShape& shape,
      const AttentionOptions& options)
      : sample_(sample),
        shape_(shape),
        options_(options),
        sorted_(static_cast<size_t>(shape.num_layers) *
                static_cast<size_t>(shape.num_query_heads)) {
    for (const SampledBounds& row : sample) {
      for (size_t h = 0; h < row.bounds.size(); ++h) {
        const auto count = static_cast<int32_t>(row.bounds[h].size());
        for (int32_t j = 0; j < count; ++j) {
          if (IsAlwaysRead(options, j, count)) continue;
          sorted_[Cell(row.layer, h)].push_back(row.bounds[h][static_cast<size_t>(j)]);
        }
      }
    }
    for (auto& bounds : sorted_) std::ranges::sort(bounds, std::greater<>());
  }

  // Thresholds at which every head admits `share` of the blocks that it may leave.
  std::vector<float> Thresholds(double share) const {
    std::vector<float> thresholds;
    for (const auto& bounds : sorted_) {
      const auto count =
          static_cast<size_t>(std::llround(share * static_cast<double>(bounds.size())));
      thresholds.push_back(count == 0 ? std::numeric_limits<float>::max() : bounds[count - 1]);
    }
    return thresholds;
  }

  double Union(const std::vector<float>& thresholds) const {
    const auto group = static_cast<size_t>(shape_.num_query_heads / shape_.num_kv_heads);
    double sum = 0.0;
    for (const SampledBounds& row : sample_) {
      for (size_t first = 0; first < row.bounds.size(); first += group) {
        sum += static_cast<double>(Read(row, first, group, thresholds)) / row.num_keys;
      }
    }
    return sum / static_cast<double>(sample_.size()) / shape_.num_kv_heads;
  }

 private:
  size_t Cell(int32_t layer, size_t head) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(shape_.num_query_heads) + head;
  }
  // Tokens that the heads first .. first + group - 1 read together.
  int64_t Read(const SampledBounds& row, size_t first, size_t group,
               const std::vector<float>& thresholds) const {
    const auto count = static_cast<int32_t>(row.bounds[first].size());
    int64_t blocks = 0;
    for (int32_t j = 0; j < count; ++j) {
      bool read = IsAlwaysRead(options_, j, count);
      for (size_t h = first; !read && h < first + group; ++h) {
        read = row.bounds[h][static_cast<size_t>(j)] >= thresholds[Cell(row.layer, h)];
      }
      blocks += read ? 1 : 0;
    }
    return blocks * shape_.block_size + row.num_keys - int64_t{count} * shape_.block_size;
  }

  const std::vector<SampledBounds>& sample_;
  const ConstantsShape& shape_;
  const AttentionOptions& options_;
  std::vector<std::vector<float>> sorted_;  // [L * HQ], descending
};

}  // namespace

absl::StatusOr<std::vector<float>> ConstantsForUnion(const std::vector<SampledBounds>& sample,
                                                     const ConstantsShape& shape,
                                                     const AttentionOptions& options,
                                                     double union_density) {
  if (sample.empty()) return InvalidField("attention", "constants need rows to be chosen on");
  const Fit fit(sample, shape, options);
  const double least = fit.Union(fit.Thresholds(0.0));
  if (!(union_density >= least && union_density <= 1.0)) {
    return InvalidField("attention",
                        absl::StrCat("constants read a union from ", least, " to 1 of this text"));
  }
  double low = 0.0;
  double high = 1.0;
  constexpr int kHalvings = 24;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2.0;
    (fit.Union(fit.Thresholds(middle)) > union_density ? high : low) = middle;
  }
  return fit.Thresholds(low);
}

}  // namespace eta
