// Where thresholds start: they keep the share of the attention that was asked for.
#include "training/adaptation/threshold_fit.h"

#include <cmath>

#include "engine/base/random.h"
#include "gtest/gtest.h"

namespace eta::training {
namespace {

struct Layer {
  FitShape shape{.num_query_heads = 4, .num_kv_heads = 2, .head_dim = 8};
  size_t length = 200;
  std::vector<float> q, k;

  explicit Layer(uint64_t seed) {
    uint64_t draw = 0;
    const auto next = [&] { return static_cast<float>(4.0 * UniformDraw(seed, draw++) - 2.0); };
    for (size_t i = 0; i < length * shape.query_dim(); ++i) q.push_back(next());
    for (size_t i = 0; i < length * shape.key_dim(); ++i) k.push_back(next());
  }
};

// Mean share of a head's attention on keys at or above its threshold.
double Kept(const Layer& layer, const LinearThresholds& thresholds, size_t head) {
  const size_t n = layer.shape.query_dim();
  const size_t d = 8;
  double kept = 0.0;
  for (size_t t = 0; t < layer.length; ++t) {
    const float* q = layer.q.data() + t * n;
    double tau = static_cast<double>(thresholds.bias[head]);
    for (size_t i = 0; i < n; ++i) {
      tau += static_cast<double>(thresholds.weight[head * n + i]) * static_cast<double>(q[i]);
    }
    double above = 0.0;
    double all = 0.0;
    for (size_t s = 0; s <= t; ++s) {
      const float* k = layer.k.data() + s * layer.shape.key_dim() + head / 2 * d;
      double score = 0.0;
      for (size_t i = 0; i < d; ++i) {
        score += static_cast<double>(q[head * d + i]) * static_cast<double>(k[i]);
      }
      score /= std::sqrt(8.0);
      all += std::exp(score);
      if (score >= tau) above += std::exp(score);
    }
    kept += above / all / static_cast<double>(layer.length);
  }
  return kept;
}

TEST(ThresholdFit, KeepsTheShareThatWasAskedFor) {
  for (const double mass : {0.8, 0.97}) {
    const Layer layer(5);
    ThresholdFit fit(layer.shape, 1000, 2);
    fit.Add(layer.q, layer.k);
    const LinearThresholds thresholds = fit.Solve(mass);
    for (size_t head = 0; head < 4; ++head) {
      EXPECT_NEAR(Kept(layer, thresholds, head), mass, 0.04) << head;
    }
  }
}

TEST(ThresholdFit, ThreadsChangeNothing) {
  const Layer layer(6);
  std::vector<LinearThresholds> fitted;
  for (const int threads : {1, 3}) {
    ThresholdFit fit(layer.shape, 64, threads);
    fit.Add(layer.q, layer.k);
    fitted.push_back(fit.Solve(0.9));
  }
  EXPECT_EQ(fitted[0].weight, fitted[1].weight);
  EXPECT_EQ(fitted[0].bias, fitted[1].bias);
}

}  // namespace
}  // namespace eta::training
