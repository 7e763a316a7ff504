// WeighRowSums, SumSquares and AdamW.

#include <cmath>

#include "training/reference/elements.h"
#include "training/reference/ops.h"

namespace eta::training::reference {

void WeighRowSums(const WeighRowSumsParams& params) {
  for (int32_t h = 0; h < params.heads; ++h) {
    double sum = 0.0;
    for (int32_t b = 0; b < params.sequences; ++b) {
      const float* row = params.x + (int64_t{b} * params.heads + h) * params.length;
      for (int32_t t = 0; t < params.length; ++t) {
        sum += static_cast<double>(row[t]) * params.weights[t];
      }
    }
    AddTo(params.out, h, sum);
  }
}

double SumSquares(const float* values, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
  return sum;
}

void AdamW(const AdamWParams& params, DType dtype) {
  const double first_share = 1.0 - std::pow(params.beta1, static_cast<double>(params.step));
  const double second_share = 1.0 - std::pow(params.beta2, static_cast<double>(params.step));
  for (int64_t i = 0; i < params.count; ++i) {
    const double gradient = static_cast<double>(params.gradient_scale) * params.gradients[i];
    const double first = params.beta1 * params.first[i] + (1.0 - params.beta1) * gradient;
    const double second =
        params.beta2 * params.second[i] + (1.0 - params.beta2) * gradient * gradient;
    const double move = first / first_share / (std::sqrt(second / second_share) + params.epsilon) +
                        static_cast<double>(params.weight_decay) * params.values[i];
    params.first[i] = static_cast<float>(first);
    params.second[i] = static_cast<float>(second);
    params.values[i] = static_cast<float>(params.values[i] - params.rate * move);
    if (params.rounded != nullptr) {
      Set({params.rounded, dtype, 1, params.count, params.count}, 0, i, params.values[i]);
    }
  }
}

}  // namespace eta::training::reference
