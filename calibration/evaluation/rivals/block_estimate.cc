#include "calibration/evaluation/rivals/block_estimate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/relative_threshold.h"

namespace eta {
namespace {

struct Sums {
  float mean = 0.0f;      // <q, mu>
  float variance = 0.0f;  // sum_i q_i^2 sigma_i^2
  float norm = 0.0f;      // |q|^2
  float size = 0.0f;      // sum_i |q_i|
  float outlier = 0.0f;   // <q, k_out>
};

Sums SumsOf(const BlockRecord& record, std::span<const float> q) {
  Sums sums;
  for (size_t i = 0; i < q.size(); ++i) {
    sums.mean += q[i] * record.mu[i];
    sums.variance += q[i] * q[i] * record.sigma[i] * record.sigma[i];
    sums.norm += q[i] * q[i];
    sums.size += std::abs(q[i]);
  }
  for (size_t i = 0; i < record.outlier.size(); ++i) sums.outlier += q[i] * record.outlier[i];
  return sums;
}

}  // namespace

double LogAdd(double a, double b) {
  const double max = std::max(a, b);
  if (max == -std::numeric_limits<double>::infinity()) return max;
  return max + std::log1p(std::exp(std::min(a, b) - max));
}

float ScoreBound(const KvGeometry& geometry, const BlockRecord& record, std::span<const float> q,
                 float softmax_scale, float z) {
  const Sums sums = SumsOf(record, q);
  const float deviation = std::sqrt(sums.variance);
  if (geometry.index == IndexKind::kOutlier) {
    return softmax_scale * std::max(sums.mean + record.step / 2.0f * sums.size + z * deviation,
                                    sums.outlier + record.outlier_step / 2.0f * sums.size);
  }
  const float length = std::sqrt(sums.norm);
  return softmax_scale *
         std::min(sums.mean + length * record.mu_error + z * deviation, length * record.max_norm);
}

float EstimatedLogMass(const KvGeometry& geometry, const BlockRecord& record,
                       std::span<const float> q, float softmax_scale) {
  const Sums sums = SumsOf(record, q);
  const double outlier = softmax_scale * sums.outlier;
  const int32_t others = geometry.block_size - 1;
  if (others == 0) return static_cast<float>(outlier);
  const double log_count = std::log(static_cast<double>(others));
  const double reach = std::sqrt(2.0 * log_count);
  const double deviation = softmax_scale * std::sqrt(sums.variance / kEnvelope);
  const double lift = deviation < reach ? deviation * deviation / 2.0 : reach * deviation;
  return static_cast<float>(LogAdd(log_count + softmax_scale * sums.mean + lift, outlier));
}

}  // namespace eta
