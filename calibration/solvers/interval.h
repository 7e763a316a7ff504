// A mean over the tokens of a text with its 95 % confidence interval.
//
// Neighbouring tokens are not independent. So the tokens are grouped into blocks of consecutive
// ones, and the interval is Student's over the block means: mean +- t(0.975, n - 1) * s / sqrt(n).
// Blocks of one window of text depend on one another too: where windows are known, a block is one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace eta {

inline constexpr int kIntervalBlock = 256;  // tokens

struct MeanInterval {
  double mean = 0.0;
  std::optional<double> half_width;  // absent with fewer than kMinIntervalBlocks whole blocks
};

inline constexpr int kMinIntervalBlocks = 4;

// The mean is over all values. Only the deviation leaves out a last partial block. REQUIRES: block
// > 0.
MeanInterval BlockMeanInterval(std::span<const float> values, int block = kIntervalBlock);

// Student's t quantile with `outside` of the distribution beyond it, both sides together: the
// quantile at 0.975 for 0.05. REQUIRES: freedom >= 3, 0 < outside < 1.
double StudentQuantile(double freedom, double outside = 0.05);

// The mean of values that are independent of one another, with Student's interval, which leaves
// `outside` out. Fewer than kMinIntervalBlocks values have none.
MeanInterval IndependentMeanInterval(std::span<const double> values, double outside = 0.05);

// The 95 % interval of a share by Wilson's score: of 0 or n hits too it has a width.
struct ShareInterval {
  double low = 0.0;
  double high = 1.0;
};
// REQUIRES: 0 <= hits <= n.
ShareInterval WilsonInterval(int64_t hits, int64_t n);

}  // namespace eta
