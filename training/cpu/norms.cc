// RmsNorm of rows, NormHeads of heads. With y = x r w and r = 1 / sqrt(mean x^2 + eps):
// dx = r (w dy - x r^2 mean(x w dy)), dw = sum over rows of x r dy.

#include <cmath>

#include "training/cpu/column_sums.h"
#include "training/cpu/ops.h"
#include "training/cpu/vector_math.h"

namespace eta::training::cpu {
namespace {

constexpr int64_t kNormRowsPerTask = 16;

float Norm(const float* x, int64_t width, const float* weight, float eps, float* out) {
  const double mean = SumOfSquares(x, width) / static_cast<double>(width);
  const auto inverse = static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(eps)));
  for (int64_t i = 0; i < width; ++i) out[i] = x[i] * inverse * weight[i];
  return inverse;
}

// Gives every dx to store(i, dx), in order; adds to dw. `scratch` [width].
template <class Store>
void NormBackward(const float* x, int64_t width, const float* weight, float inverse,
                  const float* grad, float* grad_weight, float* scratch, const Store& store) {
  for (int64_t i = 0; i < width; ++i) scratch[i] = weight[i] * grad[i];
  const float mean = Dot(x, scratch, width) / static_cast<float>(width);
  const float along = inverse * inverse * mean;
  for (int64_t i = 0; i < width; ++i) {
    grad_weight[i] += x[i] * inverse * grad[i];
    store(i, inverse * (scratch[i] - x[i] * along));
  }
}

void NormHeadsOf(const Context& context, const Tensor& x, const float* weight, int32_t d, float eps,
                 const Tensor& out, float* inverse_rms) {
  const int64_t heads = x.cols / d;
  ForRanges(context, x.rows, kNormRowsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        inverse_rms[r * heads + h] = Norm(Row(x, r) + h * d, d, weight, eps, Row(out, r) + h * d);
      }
    }
  });
}

void NormHeadsBackwardOf(const Context& context, const Tensor& x, const float* weight, int32_t d,
                         const float* inverse_rms, const Tensor& grad, float* grad_weight) {
  const int64_t heads = x.cols / d;
  SumColumns(context, x.rows, d, grad_weight, [&](int64_t begin, int64_t end, float* sums) {
    std::vector<float> scratch(static_cast<size_t>(d));
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        float* head = Row(grad, r) + h * d;
        NormBackward(Row(x, r) + h * d, d, weight, inverse_rms[r * heads + h], head, sums,
                     scratch.data(), [&](int64_t i, float value) { head[i] = value; });
      }
    }
  });
}

}  // namespace

void RmsNorm(const Context& context, const RmsNormParams& params) {
  ForRanges(context, params.x.rows, kNormRowsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      params.inverse_rms[r] =
          Norm(Row(params.x, r), params.x.cols, params.weight, params.eps, Row(params.out, r));
    }
  });
}

void RmsNormBackward(const Context& context, const RmsNormBackwardParams& params) {
  const int64_t width = params.x.cols;
  SumColumns(context, params.x.rows, width, params.grad_weight,
             [&](int64_t begin, int64_t end, float* sums) {
               std::vector<float> scratch(static_cast<size_t>(width));
               for (int64_t r = begin; r < end; ++r) {
                 float* grad_x = Row(params.grad_x, r);
                 NormBackward(Row(params.x, r), width, params.weight, params.inverse_rms[r],
                              Row(params.grad_out, r), sums, scratch.data(),
                              [&](int64_t i, float value) { grad_x[i] += value; });
               }
             });
}

void NormHeads(const Context& context, const NormHeadsParams& params) {
  NormHeadsOf(context, params.q, params.q_weight, params.head_dim, params.eps, params.q_out,
              params.q_inverse_rms);
  NormHeadsOf(context, params.k, params.k_weight, params.head_dim, params.eps, params.k_out,
              params.k_inverse_rms);
}

void NormHeadsBackward(const Context& context, const NormHeadsBackwardParams& params) {
  const NormHeadsParams& f = params.forward;
  NormHeadsBackwardOf(context, f.q, f.q_weight, f.head_dim, f.q_inverse_rms, params.grad_q,
                      params.grad_q_weight);
  NormHeadsBackwardOf(context, f.k, f.k_weight, f.head_dim, f.k_inverse_rms, params.grad_k,
                      params.grad_k_weight);
}

}  // namespace eta::training::cpu
