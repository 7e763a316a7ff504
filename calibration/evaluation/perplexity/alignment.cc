#include "calibration/evaluation/perplexity/alignment.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "calibration/solvers/divergence.h"

namespace eta {

VectorAlignment AlignVectors(std::span<const float> full, std::span<const float> sparse) {
  double product = 0.0;
  double full_square = 0.0;
  double sparse_square = 0.0;
  double difference = 0.0;
  for (size_t i = 0; i < full.size(); ++i) {
    const double a = full[i];
    const double b = sparse[i];
    product += a * b;
    full_square += a * a;
    sparse_square += b * b;
    difference += (a - b) * (a - b);
  }
  VectorAlignment alignment;
  if (full_square > 0.0 && sparse_square > 0.0) {
    alignment.cosine = product / std::sqrt(full_square) / std::sqrt(sparse_square);
  }
  if (full_square > 0.0) alignment.shift = std::sqrt(difference / full_square);
  return alignment;
}

double LogSumExp(std::span<const double> logits) {
  if (logits.empty()) return -std::numeric_limits<double>::infinity();
  const double max = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const double logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum);
}

LogitAlignment AlignLogits(std::span<const float> full, std::span<const float> sparse) {
  return {.cosine = AlignVectors(full, sparse).cosine,
          .kl = KlDivergence(full, sparse),
          .same_best = std::ranges::max_element(full) - full.begin() ==
                       std::ranges::max_element(sparse) - sparse.begin()};
}

}  // namespace eta
