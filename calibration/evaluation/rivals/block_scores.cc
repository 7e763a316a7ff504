// Rules that look at every key of every row are slow, and most of their time is spent here:
// products and exponentials in float32, on the instruction set that the machine has.
#include "calibration/evaluation/rivals/block_scores.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "calibration/evaluation/rivals/block_scores.cc"
#include "hwy/foreach_target.h"
// The target list must come before any header that includes Highway.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eta::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;

// `scores` [n], of keys [n, d].
void Scores(const float* keys, std::span<const float> q, float scale, std::span<float> scores) {
  const Floats df;
  const size_t lanes = hn::Lanes(df);
  const size_t d = q.size();
  for (float& score : scores) {
    auto sum = hn::Zero(df);
    size_t i = 0;
    for (; i + lanes <= d; i += lanes) {
      sum = hn::MulAdd(hn::LoadU(df, q.data() + i), hn::LoadU(df, keys + i), sum);
    }
    float rest = 0.0f;
    for (; i < d; ++i) rest += q[i] * keys[i];
    score = scale * (hn::GetLane(hn::SumOfLanes(df, sum)) + rest);
    keys += d;
  }
}

// REQUIRES: a multiple of the lanes.
void Temper(std::span<float> logits, float beta, float threshold) {
  const Floats df;
  const auto one = hn::Set(df, 1.0f);
  for (size_t i = 0; i < logits.size(); i += hn::Lanes(df)) {
    const auto x = hn::LoadU(df, logits.data() + i);
    const auto y = hn::Mul(hn::Set(df, -beta), hn::Sub(x, hn::Set(df, threshold)));
    const auto bounded = hn::Min(y, hn::Set(df, 88.0f));  // what Exp takes
    hn::StoreU(hn::Div(x, hn::Add(one, hn::Exp(df, bounded))), df, logits.data() + i);
  }
}

// The sum of e^(logit - max). REQUIRES: a multiple of the lanes.
float ExpSum(std::span<const float> logits, float max) {
  const Floats df;
  auto sum = hn::Zero(df);
  for (size_t i = 0; i < logits.size(); i += hn::Lanes(df)) {
    const auto x = hn::LoadU(df, logits.data() + i);
    sum = hn::Add(sum, hn::Exp(df, hn::Sub(x, hn::Set(df, max))));
  }
  return hn::GetLane(hn::SumOfLanes(df, sum));
}

}  // namespace eta::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta {
namespace {

HWY_EXPORT(Scores);
HWY_EXPORT(Temper);
HWY_EXPORT(ExpSum);

constexpr size_t kMostLanes = 16;  // of float32

// [n], and room behind them for whole vectors.
std::vector<float> PaddedScores(std::span<const float> keys, std::span<const float> q,
                                float softmax_scale) {
  const size_t n = keys.size() / q.size();
  std::vector<float> scores((n + kMostLanes - 1) / kMostLanes * kMostLanes);
  HWY_DYNAMIC_DISPATCH(Scores)(keys.data(), q, softmax_scale, std::span(scores).first(n));
  return scores;
}

double LogSumExp(std::span<float> padded, size_t n) {
  std::ranges::fill(padded.subspan(n), -std::numeric_limits<float>::infinity());
  const float max = *std::ranges::max_element(padded.first(n));
  return max + std::log(static_cast<double>(HWY_DYNAMIC_DISPATCH(ExpSum)(padded, max)));
}

}  // namespace

std::vector<float> BlockScores(std::span<const float> keys, std::span<const float> q,
                               float softmax_scale) {
  std::vector<float> scores = PaddedScores(keys, q, softmax_scale);
  scores.resize(keys.size() / q.size());
  return scores;
}

double LogMass(std::span<const float> keys, std::span<const float> q, float softmax_scale) {
  std::vector<float> scores = PaddedScores(keys, q, softmax_scale);
  return LogSumExp(scores, keys.size() / q.size());
}

double GatedLogMass(std::span<const float> keys, std::span<const float> q, float softmax_scale,
                    const ScoreGate& gate, bool own) {
  const size_t n = keys.size() / q.size();
  std::vector<float> logits = PaddedScores(keys, q, softmax_scale);
  if (gate.silu) {
    const float last = logits[n - 1];
    HWY_DYNAMIC_DISPATCH(Temper)(logits, gate.beta, gate.threshold);
    if (own) logits[n - 1] = last;
  }
  return LogSumExp(logits, n);
}

}  // namespace eta
#endif
