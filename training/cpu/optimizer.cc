// WeighRowSums, SumSquares and AdamW.

#include <cmath>
#include <vector>

#include "training/cpu/ops.h"
#include "training/cpu/vector_math.h"

namespace eta::training::cpu {

namespace {
constexpr int64_t kElementsPerTask = 1 << 14;
}  // namespace

void WeighRowSums(const Context& context, const WeighRowSumsParams& params) {
  ForRanges(context, params.heads, 1, [&](int64_t h, int64_t, int) {
    double sum = 0.0;
    for (int32_t b = 0; b < params.sequences; ++b) {
      const float* row = params.x + (int64_t{b} * params.heads + h) * params.length;
      for (int32_t t = 0; t < params.length; ++t) {
        sum += static_cast<double>(row[t]) * params.weights[t];
      }
    }
    params.out[h] += static_cast<float>(sum);
  });
}

double SumSquares(const Context& context, const float* values, int64_t count) {
  std::vector<double> sums(static_cast<size_t>((count + kElementsPerTask - 1) / kElementsPerTask));
  ForRanges(context, count, kElementsPerTask, [&](int64_t begin, int64_t end, int) {
    sums[static_cast<size_t>(begin / kElementsPerTask)] = SumOfSquares(values + begin, end - begin);
  });
  double sum = 0.0;
  for (const double part : sums) sum += part;
  return sum;
}

void AdamW(const Context& context, const AdamWParams& params) {
  const auto step = static_cast<double>(params.step);
  const auto first_factor = static_cast<float>(1.0 / (1.0 - std::pow(params.beta1, step)));
  const auto second_factor = static_cast<float>(1.0 / (1.0 - std::pow(params.beta2, step)));
  ForRanges(context, params.count, kElementsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const float gradient = params.gradient_scale * params.gradients[i];
      const float first = params.beta1 * params.first[i] + (1.0f - params.beta1) * gradient;
      const float second =
          params.beta2 * params.second[i] + (1.0f - params.beta2) * gradient * gradient;
      params.first[i] = first;
      params.second[i] = second;
      params.values[i] -= params.rate * (first * first_factor /
                                             (std::sqrt(second * second_factor) + params.epsilon) +
                                         params.weight_decay * params.values[i]);
    }
  });
}

}  // namespace eta::training::cpu
