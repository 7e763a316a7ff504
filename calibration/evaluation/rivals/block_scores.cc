// Rules that look at every key of every row are slow, and most of their time is spent here:
// products and exponentials in float32, on the instruction set that the machine has.
#include "calibration/evaluation/rivals/block_scores.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "calibration/evaluation/rivals/block_scores.cc"
#include "hwy/foreach_target.h"
// The target list must come before any header that includes Highway.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eta::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;

// `scores` [n], of columns [d, stride]. REQUIRES: n a multiple of 16.
void Scores(const float* columns, size_t stride, std::span<const float> q, float scale,
            std::span<float> scores) {
  const Floats df;
  const size_t lanes = hn::Lanes(df);
  const auto by = hn::Set(df, scale);
  size_t t = 0;
  for (; t + 4 * lanes <= scores.size(); t += 4 * lanes) {
    auto sum0 = hn::Zero(df);
    auto sum1 = sum0;
    auto sum2 = sum0;
    auto sum3 = sum0;
    const float* column = columns + t;
    for (const float value : q) {
      const auto factor = hn::Set(df, value);
      sum0 = hn::MulAdd(factor, hn::LoadU(df, column), sum0);
      sum1 = hn::MulAdd(factor, hn::LoadU(df, column + lanes), sum1);
      sum2 = hn::MulAdd(factor, hn::LoadU(df, column + 2 * lanes), sum2);
      sum3 = hn::MulAdd(factor, hn::LoadU(df, column + 3 * lanes), sum3);
      column += stride;
    }
    hn::StoreU(hn::Mul(by, sum0), df, scores.data() + t);
    hn::StoreU(hn::Mul(by, sum1), df, scores.data() + t + lanes);
    hn::StoreU(hn::Mul(by, sum2), df, scores.data() + t + 2 * lanes);
    hn::StoreU(hn::Mul(by, sum3), df, scores.data() + t + 3 * lanes);
  }
  for (; t < scores.size(); t += lanes) {
    auto sum = hn::Zero(df);
    const float* column = columns + t;
    for (const float value : q) {
      sum = hn::MulAdd(hn::Set(df, value), hn::LoadU(df, column), sum);
      column += stride;
    }
    hn::StoreU(hn::Mul(by, sum), df, scores.data() + t);
  }
}

// Exp of numbers within this bound is neither infinite nor a denormal number, which is slow.
constexpr float kMostExponent = 87.0f;

// REQUIRES: a multiple of the lanes.
void Temper(std::span<float> logits, float beta, float threshold) {
  const Floats df;
  const auto one = hn::Set(df, 1.0f);
  for (size_t i = 0; i < logits.size(); i += hn::Lanes(df)) {
    const auto x = hn::LoadU(df, logits.data() + i);
    const auto y = hn::Mul(hn::Set(df, -beta), hn::Sub(x, hn::Set(df, threshold)));
    const auto bounded = hn::Clamp(y, hn::Set(df, -kMostExponent), hn::Set(df, kMostExponent));
    hn::StoreU(hn::Div(x, hn::Add(one, hn::Exp(df, bounded))), df, logits.data() + i);
  }
}

// exp(x - max), of the lanes at `logits`.
template <class D>
hn::Vec<D> Below(D df, const float* logits, float max) {
  const auto x = hn::Sub(hn::LoadU(df, logits), hn::Set(df, max));
  return hn::Exp(df, hn::Max(x, hn::Set(df, -kMostExponent)));
}

double ExponentialsInPlace(std::span<float> logits, float max) {
  const Floats df;
  const size_t lanes = hn::Lanes(df);
  double total = 0.0;
  size_t i = 0;
  for (; i + lanes <= logits.size(); i += lanes) {
    const auto weights = Below(df, logits.data() + i, max);
    hn::StoreU(weights, df, logits.data() + i);
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(df, weights)));
  }
  for (; i < logits.size(); ++i) {
    logits[i] = std::exp(std::max(logits[i] - max, -kMostExponent));
    total += static_cast<double>(logits[i]);
  }
  return total;
}

float LargestOf(std::span<const float> values) {
  const Floats df;
  const size_t lanes = hn::Lanes(df);
  auto most = hn::Set(df, values.front());
  size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes) {
    most = hn::Max(most, hn::LoadU(df, values.data() + i));
  }
  float largest = hn::GetLane(hn::MaxOfLanes(df, most));
  for (; i < values.size(); ++i) largest = std::max(largest, values[i]);
  return largest;
}

// Sums of a few coordinates stay in registers over all rows.
void AddWeightedRows(const float* values, std::span<const float> weights, std::span<float> out) {
  const Floats df;
  const size_t lanes = hn::Lanes(df);
  const size_t d = out.size();
  size_t i = 0;
  for (; i + 4 * lanes <= d; i += 4 * lanes) {
    auto sum0 = hn::LoadU(df, out.data() + i);
    auto sum1 = hn::LoadU(df, out.data() + i + lanes);
    auto sum2 = hn::LoadU(df, out.data() + i + 2 * lanes);
    auto sum3 = hn::LoadU(df, out.data() + i + 3 * lanes);
    const float* row = values + i;
    for (const float weight : weights) {
      const auto factor = hn::Set(df, weight);
      sum0 = hn::MulAdd(factor, hn::LoadU(df, row), sum0);
      sum1 = hn::MulAdd(factor, hn::LoadU(df, row + lanes), sum1);
      sum2 = hn::MulAdd(factor, hn::LoadU(df, row + 2 * lanes), sum2);
      sum3 = hn::MulAdd(factor, hn::LoadU(df, row + 3 * lanes), sum3);
      row += d;
    }
    hn::StoreU(sum0, df, out.data() + i);
    hn::StoreU(sum1, df, out.data() + i + lanes);
    hn::StoreU(sum2, df, out.data() + i + 2 * lanes);
    hn::StoreU(sum3, df, out.data() + i + 3 * lanes);
  }
  for (; i < d; ++i) {
    float sum = out[i];
    for (size_t t = 0; t < weights.size(); ++t) sum += weights[t] * values[t * d + i];
    out[i] = sum;
  }
}

// REQUIRES: a multiple of the lanes.
double LogSumExp(std::span<const float> logits) {
  const Floats df;
  const float max = LargestOf(logits);
  auto sum = hn::Zero(df);
  for (size_t i = 0; i < logits.size(); i += hn::Lanes(df)) {
    sum = hn::Add(sum, Below(df, logits.data() + i, max));
  }
  return max + std::log(static_cast<double>(hn::GetLane(hn::SumOfLanes(df, sum))));
}

}  // namespace eta::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta {
namespace {

HWY_EXPORT(Scores);
HWY_EXPORT(Temper);
HWY_EXPORT(ExponentialsInPlace);
HWY_EXPORT(LargestOf);
HWY_EXPORT(AddWeightedRows);
HWY_EXPORT(LogSumExp);

// Scores of the keys of a block, padded with columns that fill the last vector.
class PaddedScores {
 public:
  PaddedScores(const KeyColumns& keys, std::span<const float> q, float softmax_scale)
      : count_(keys.count) {
    HWY_DYNAMIC_DISPATCH(Scores)(keys.values.data(), keys.stride, q, softmax_scale, padded());
  }

  std::span<float> scores() { return std::span(values_).first(count_); }
  std::span<float> padded() { return std::span(values_).first(KeyColumns::StrideFor(count_)); }

  double LogMass() {
    std::ranges::fill(padded().subspan(count_), std::numeric_limits<float>::lowest());
    return HWY_DYNAMIC_DISPATCH(LogSumExp)(padded());
  }

 private:
  size_t count_;
  std::array<float, KeyColumns::kMostKeys> values_;
};

}  // namespace

std::vector<float> BlockScores(const KeyColumns& keys, std::span<const float> q,
                               float softmax_scale) {
  PaddedScores scores(keys, q, softmax_scale);
  return {scores.scores().begin(), scores.scores().end()};
}

double LogMass(const KeyColumns& keys, std::span<const float> q, float softmax_scale) {
  return PaddedScores(keys, q, softmax_scale).LogMass();
}

void GatedLogits(const KeyColumns& keys, std::span<const float> q, float softmax_scale,
                 const ScoreGate& gate, bool own, std::span<float> logits) {
  PaddedScores gated(keys, q, softmax_scale);
  if (gate.silu) {
    float& last = gated.scores().back();
    const float score = last;
    HWY_DYNAMIC_DISPATCH(Temper)(gated.padded(), gate.beta, gate.threshold);
    if (own) last = score;
  }
  std::ranges::copy(gated.scores(), logits.begin());
}

float Largest(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(LargestOf)(values);
}

double Exponentials(std::span<float> logits, float max) {
  return HWY_DYNAMIC_DISPATCH(ExponentialsInPlace)(logits, max);
}

void AddWeighted(std::span<const float> values, std::span<const float> weights,
                 std::span<float> out) {
  HWY_DYNAMIC_DISPATCH(AddWeightedRows)(values.data(), weights, out);
}

}  // namespace eta
#endif
