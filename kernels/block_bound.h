// What a block's record promises of the scores of its keys, for one query head: the bound of
// eta-semantics.md, "Selection", step 1, and the estimated mass of "Relative thresholds". Bounds
// and scores are float32, since the contract compares in this precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/relative_threshold.h"

namespace eta {

// One block's record for one KV head, unpacked. Vectors are [d], as rounded.
struct RecordView {
  std::span<const float> mu;
  std::span<const float> sigma;
  std::span<const float> outlier;  // kOutlier, else empty
  float max_norm = 0.0f;           // M; kMoment, as is
  float mu_error = 0.0f;           // e of an 8-bit record
  float step = 0.0f;               // A and B of an 8-bit record; kOutlier
  float outlier_step = 0.0f;
};

// What both formulas are made of.
struct BlockProducts {
  float mean = 0.0f;      // <q, mu>
  float variance = 0.0f;  // sum_i q_i^2 sigma_i^2
  float norm = 0.0f;      // |q|^2
  float size = 0.0f;      // sum_i |q_i|
  float outlier = 0.0f;   // <q, k_out>
};

inline BlockProducts ProductsOf(const RecordView& record, std::span<const float> q) {
  BlockProducts products;
  for (size_t i = 0; i < q.size(); ++i) {
    products.mean += q[i] * record.mu[i];
    products.variance += q[i] * q[i] * record.sigma[i] * record.sigma[i];
    products.norm += q[i] * q[i];
    products.size += std::abs(q[i]);
  }
  for (size_t i = 0; i < record.outlier.size(); ++i) products.outlier += q[i] * record.outlier[i];
  return products;
}

// The bound as a function of z.
struct BlockBound {
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();

  float mean = 0.0f;           // <q, mu>, and what rounding of mu may have lost
  float deviation = 0.0f;      // sqrt(sum_i q_i^2 sigma_i^2)
  float ceiling = kInfinity;   // |q| M; of an outlier record none
  float outlier = -kInfinity;  // <q, k_out>, and what rounding may have lost; else none
  float scale = 0.0f;          // s

  constexpr float At(float z) const {
    const float estimate = mean + z * deviation;
    const float capped = ceiling < estimate ? ceiling : estimate;
    const float larger = capped < outlier ? outlier : capped;
    return scale * (outlier == outlier ? larger : outlier);  // a NaN of either is one of the bound
  }
};

// The bound holds if every key of the block, the outlier apart, lies within z deviations of the
// mean along the query. What rounding of 8-bit vectors lost at most is added. The Cauchy-Schwarz
// ceiling |q| M always holds.
inline BlockBound BoundOf(const RecordView& record, std::span<const float> q, float softmax_scale) {
  const BlockProducts products = ProductsOf(record, q);
  const float deviation = std::sqrt(products.variance);
  if (!record.outlier.empty()) {
    return {.mean = products.mean + record.step / 2.0f * products.size,
            .deviation = deviation,
            .outlier = products.outlier + record.outlier_step / 2.0f * products.size,
            .scale = softmax_scale};
  }
  const float length = std::sqrt(products.norm);
  return {.mean = products.mean + length * record.mu_error,
          .deviation = deviation,
          .ceiling = length * record.max_norm,
          .scale = softmax_scale};
}

// m, sd and o: the scores of a block's keys, by a record of kOutlier.
struct RecordScores {
  float mean = 0.0f;
  float deviation = 0.0f;
  float outlier = 0.0f;
};

inline RecordScores ScoresOf(const RecordView& record, std::span<const float> q,
                             float softmax_scale) {
  const BlockProducts products = ProductsOf(record, q);
  return {.mean = softmax_scale * products.mean,
          .deviation = softmax_scale * std::sqrt(products.variance / kEnvelopeRatio),
          .outlier = softmax_scale * products.outlier};
}

// log(exp(a) + exp(b)); also of minus infinity, which is the log of 0.
inline float LogAdd(float a, float b) {
  const float max = std::max(a, b);
  if (max == -std::numeric_limits<float>::infinity()) return max;
  return max + std::log(std::exp(a - max) + std::exp(b - max));
}
inline double LogAdd(double a, double b) {
  const double max = std::max(a, b);
  if (max == -std::numeric_limits<double>::infinity()) return max;
  return max + std::log1p(std::exp(-std::abs(a - b)));  // NaN of either is one of the sum
}

// l_j: the mass of `others` Gaussian keys and the outlier. Up to the deviation that so many keys
// are expected to hold, the mean of exp() grows by v/2; from there on by its tangent, since beyond
// one key carries the sum. The deviation is a factor of the lift, so a NaN stays one whatever min()
// makes of it. The contract's is in float; double is for evaluation.
template <typename Real>
Real BlockMass(const RecordScores& scores, int32_t others) {
  if (others == 0) return Real{scores.outlier};
  const Real log_count = std::log(static_cast<Real>(others));
  const Real reach = std::sqrt(Real{2} * log_count);
  const Real sd = scores.deviation;
  const Real gaussian = std::min(sd, reach);
  const Real lift = gaussian * (sd - gaussian / Real{2});
  return LogAdd(log_count + scores.mean + lift, Real{scores.outlier});
}

}  // namespace eta
