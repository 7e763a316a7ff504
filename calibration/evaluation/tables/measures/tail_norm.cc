#include "calibration/evaluation/tables/measures/tail_norm.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace eta {
namespace {

// Sums over a set of values: enough for its mean and its spread about any point.
class ValueSums {
 public:
  explicit ValueSums(int32_t head_dim) : sum_(static_cast<size_t>(head_dim)) {}

  void Add(std::span<const float> value, double weight) {
    for (size_t i = 0; i < sum_.size(); ++i) {
      sum_[i] += weight * value[i];
      squares_ += weight * value[i] * value[i];
    }
    weight_ += weight;
  }

  double weight() const { return weight_; }
  double Mean(size_t i) const { return sum_[i] / weight_; }
  // Mean square distance from the mean: tr Sigma.
  double Spread() const {
    double length = 0.0;
    for (size_t i = 0; i < sum_.size(); ++i) length += Mean(i) * Mean(i);
    return std::max(0.0, squares_ / weight_ - length);
  }
  double SquareTo(const ValueSums& other) const {
    double square = 0.0;
    for (size_t i = 0; i < sum_.size(); ++i) {
      square += (Mean(i) - other.Mean(i)) * (Mean(i) - other.Mean(i));
    }
    return square;
  }

 private:
  std::vector<double> sum_;
  double squares_ = 0.0;
  double weight_ = 0.0;
};

// What one row and head pruned.
struct Pruned {
  ValueSums plain;
  ValueSums weighted;
};

void AddNorms(const ValueSums& all, const Pruned& pruned, std::vector<double>& sums) {
  const double spread = all.Spread();
  const double count = pruned.plain.weight();
  if (!(spread > 0.0) || count == 0.0) return;
  const double offset = pruned.plain.SquareTo(all);
  for (size_t i = 0; i < kTailSizes.size(); ++i) {
    const double m = kTailSizes[i];
    if (count >= m) {
      // The variance of the mean of m of `count` without replacement.
      const double left = count > 1.0 ? (count - m) / (count - 1.0) : 0.0;
      const double square = offset + pruned.plain.Spread() / m * left;
      sums[TailNormSum(i, TailNorm::kSubset)] += std::sqrt(square / spread);
      const double keys = all.weight();
      sums[TailNormSum(i, TailNorm::kFinite)] += std::sqrt((keys - m) / (m * (keys - 1.0)));
      sums[TailNormTerms(i, TailNorm::kSubset)] += 1.0;
    }
    if (count >= m / std::numbers::sqrt2 && count < m * std::numbers::sqrt2) {
      sums[TailNormSum(i, TailNorm::kWhole)] += std::sqrt(offset / spread);
      sums[TailNormSum(i, TailNorm::kWeighted)] +=
          std::sqrt(pruned.weighted.SquareTo(all) / spread);
      sums[TailNormTerms(i, TailNorm::kWhole)] += 1.0;
    }
  }
}

}  // namespace

std::vector<double> TailNormSums(const RecordedWindow& window, const RecordedLayer& layer) {
  std::vector<double> sums(kTailNormSums);
  for (int32_t kv_head = 0; kv_head < window.num_kv_heads; ++kv_head) {
    ValueSums all(window.head_dim);
    int32_t seen = 0;
    for (const RecordedRow& row : layer.rows) {
      for (; seen < row.num_keys(); ++seen) all.Add(window.value(layer, kv_head, seen), 1.0);
      for (int32_t g = 0; g < window.group_size(); ++g) {
        const int32_t h = kv_head * window.group_size() + g;
        const float threshold = row.thresholds[static_cast<size_t>(h)];
        const std::vector<double> scores = RowScores(window, layer, row, h);
        const std::vector<double> weights = Softmax(GatedLogits(window, scores, threshold));
        Pruned pruned = {ValueSums(window.head_dim), ValueSums(window.head_dim)};
        double active = 1.0;
        for (int32_t s = 0; s < row.position; ++s) {
          const auto at = static_cast<size_t>(s);
          if (!(scores[at] < threshold)) continue;
          pruned.plain.Add(window.value(layer, kv_head, s), 1.0);
          pruned.weighted.Add(window.value(layer, kv_head, s), weights[at]);
          active -= weights[at];
        }
        sums[kActiveShareSum] += active;
        sums[kActiveShareTerms] += 1.0;
        AddNorms(all, pruned, sums);
      }
    }
  }
  return sums;
}

}  // namespace eta
