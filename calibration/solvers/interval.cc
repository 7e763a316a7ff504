#include "calibration/solvers/interval.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

namespace eta {
namespace {

constexpr double kNormalQuantile = 1.959963984540054;  // at 0.975

double Sum(std::span<const float> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// The normal quantile with `outside` beyond it on both sides together, by bisection.
double NormalQuantile(double outside) {
  double low = 0.0;
  double high = 40.0;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2.0;
    (std::erfc(middle / std::sqrt(2.0)) > outside ? low : high) = middle;
  }
  return (low + high) / 2.0;
}

}  // namespace

// From the normal quantile: the expansion in 1/freedom of Abramowitz and Stegun, 26.7.5. At 0.975
// it is within 0.2 % from 3 degrees of freedom on.
double StudentQuantile(double freedom, double outside) {
  const double x = outside == 0.05 ? kNormalQuantile : NormalQuantile(outside);
  const double x2 = x * x;
  const double g1 = (x2 + 1) * x / 4;
  const double g2 = ((5 * x2 + 16) * x2 + 3) * x / 96;
  const double g3 = (((3 * x2 + 19) * x2 + 17) * x2 - 15) * x / 384;
  const double g4 = ((((79 * x2 + 776) * x2 + 1482) * x2 - 1920) * x2 - 945) * x / 92160;
  return x + (g1 + (g2 + (g3 + g4 / freedom) / freedom) / freedom) / freedom;
}

MeanInterval BlockMeanInterval(std::span<const float> values, int block) {
  MeanInterval interval;
  if (values.empty()) return interval;
  interval.mean = Sum(values) / static_cast<double>(values.size());
  const auto tokens = static_cast<size_t>(block);
  const size_t blocks = values.size() / tokens;
  std::vector<double> means(blocks);
  for (size_t i = 0; i < blocks; ++i) {
    means[i] = Sum(values.subspan(i * tokens, tokens)) / block;
  }
  interval.half_width = IndependentMeanInterval(means).half_width;
  return interval;
}

MeanInterval IndependentMeanInterval(std::span<const double> values, double outside) {
  MeanInterval interval;
  if (values.empty()) return interval;
  const auto n = static_cast<double>(values.size());
  interval.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  if (values.size() < kMinIntervalBlocks) return interval;
  double squares = 0.0;
  for (const double value : values) squares += (value - interval.mean) * (value - interval.mean);
  interval.half_width = StudentQuantile(n - 1, outside) * std::sqrt(squares / (n - 1) / n);
  return interval;
}

ShareInterval WilsonInterval(int64_t hits, int64_t n) {
  if (n <= 0) return {};
  const auto count = static_cast<double>(n);
  const double share = static_cast<double>(hits) / count;
  const double z2 = kNormalQuantile * kNormalQuantile;
  const double centre = (share + z2 / (2.0 * count)) / (1.0 + z2 / count);
  const double half = kNormalQuantile *
                      std::sqrt(share * (1.0 - share) / count + z2 / (4.0 * count * count)) /
                      (1.0 + z2 / count);
  return {std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

}  // namespace eta
