#include "calibration/solvers/divergence.h"

#include <algorithm>
#include <cmath>

namespace eta {

double KlDivergence(std::span<const float> first, std::span<const float> other) {
  const double first_max = *std::ranges::max_element(first);
  const double other_max = *std::ranges::max_element(other);
  double first_sum = 0.0;
  double other_sum = 0.0;
  double difference = 0.0;
  for (size_t i = 0; i < first.size(); ++i) {
    const double a = first[i] - first_max;
    const double b = other[i] - other_max;
    const double weight = std::exp(a);
    first_sum += weight;
    other_sum += std::exp(b);
    difference += weight * (a - b);
  }
  // sum p (log p - log q), where log p = a - log(first_sum)
  const double kl = difference / first_sum + std::log(other_sum) - std::log(first_sum);
  return std::max(kl, 0.0);  // below 0 by rounding alone
}

void KeptDivergence::Add(std::span<const float> logits) {
  if (is_first_) {
    first_.rows.insert(first_.rows.end(), logits.begin(), logits.end());
    return;
  }
  const auto width = static_cast<size_t>(first_.vocab_size);
  const std::span<const float> kept = first_.rows;
  for (; !logits.empty(); logits = logits.subspan(width)) {
    const auto first = kept.subspan(rows_.size() * width, width);
    rows_.push_back(static_cast<float>(KlDivergence(first, logits.first(width))));
  }
}

}  // namespace eta
