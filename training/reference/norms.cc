// RmsNorm of rows, NormHeads of heads. With y = x r w and r = 1 / sqrt(mean x^2 + eps):
// dx = r (w dy - x r^2 mean(x w dy)), dw = sum over rows of x r dy.

#include <cmath>
#include <vector>

#include "training/reference/elements.h"
#include "training/reference/ops.h"

namespace eta::training::reference {
namespace {

// Columns [begin, begin + width) of row r of x, into those of out. Returns r.
double Norm(const Tensor& x, int64_t r, int64_t begin, int64_t width, const float* weight,
            double eps, const Tensor& out) {
  double squares = 0.0;
  for (int64_t i = begin; i < begin + width; ++i) squares += Get(x, r, i) * Get(x, r, i);
  const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(width) + eps);
  for (int64_t i = 0; i < width; ++i) {
    Set(out, r, begin + i, Get(x, r, begin + i) * inverse * weight[i]);
  }
  return inverse;
}

// The gradient of x of the same columns; adds its part of the weight's to `grad_weight` [width].
std::vector<double> NormBackward(const Tensor& x, int64_t r, int64_t begin, int64_t width,
                                 const float* weight, double inverse, const Tensor& grad_out,
                                 std::vector<double>& grad_weight) {
  double mean = 0.0;
  for (int64_t i = 0; i < width; ++i) {
    mean += Get(x, r, begin + i) * weight[i] * Get(grad_out, r, begin + i);
  }
  mean /= static_cast<double>(width);
  std::vector<double> grad(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) {
    const double at = Get(x, r, begin + i);
    const double dy = Get(grad_out, r, begin + i);
    grad[static_cast<size_t>(i)] = inverse * (weight[i] * dy - at * inverse * inverse * mean);
    grad_weight[static_cast<size_t>(i)] += at * inverse * dy;
  }
  return grad;
}

void NormHeadsOf(const Tensor& x, const float* weight, int32_t head_dim, double eps,
                 const Tensor& out, float* inverse_rms) {
  const int64_t heads = x.cols / head_dim;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      inverse_rms[r * heads + h] =
          static_cast<float>(Norm(x, r, h * head_dim, head_dim, weight, eps, out));
    }
  }
}

void NormHeadsBackwardOf(const Tensor& x, const float* weight, int32_t head_dim,
                         const float* inverse_rms, const Tensor& grad, float* grad_weight) {
  const int64_t heads = x.cols / head_dim;
  std::vector<double> sums(static_cast<size_t>(head_dim), 0.0);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t begin = h * head_dim;
      const std::vector<double> grad_x =
          NormBackward(x, r, begin, head_dim, weight, inverse_rms[r * heads + h], grad, sums);
      for (int64_t i = 0; i < head_dim; ++i) {
        Set(grad, r, begin + i, grad_x[static_cast<size_t>(i)]);
      }
    }
  }
  for (int64_t i = 0; i < head_dim; ++i) AddTo(grad_weight, i, sums[static_cast<size_t>(i)]);
}

}  // namespace

void RmsNorm(const RmsNormParams& params) {
  for (int64_t r = 0; r < params.x.rows; ++r) {
    params.inverse_rms[r] = static_cast<float>(
        Norm(params.x, r, 0, params.x.cols, params.weight, params.eps, params.out));
  }
}

void RmsNormBackward(const RmsNormBackwardParams& params) {
  const int64_t width = params.x.cols;
  std::vector<double> sums(static_cast<size_t>(width), 0.0);
  for (int64_t r = 0; r < params.x.rows; ++r) {
    const std::vector<double> grad = NormBackward(params.x, r, 0, width, params.weight,
                                                  params.inverse_rms[r], params.grad_out, sums);
    for (int64_t i = 0; i < width; ++i) AddTo(params.grad_x, r, i, grad[static_cast<size_t>(i)]);
  }
  for (int64_t i = 0; i < width; ++i) {
    AddTo(params.grad_weight, i, sums[static_cast<size_t>(i)]);
  }
}

void NormHeads(const NormHeadsParams& params) {
  NormHeadsOf(params.q, params.q_weight, params.head_dim, params.eps, params.q_out,
              params.q_inverse_rms);
  NormHeadsOf(params.k, params.k_weight, params.head_dim, params.eps, params.k_out,
              params.k_inverse_rms);
}

void NormHeadsBackward(const NormHeadsBackwardParams& params) {
  const NormHeadsParams& f = params.forward;
  NormHeadsBackwardOf(f.q, f.q_weight, f.head_dim, f.q_inverse_rms, params.grad_q,
                      params.grad_q_weight);
  NormHeadsBackwardOf(f.k, f.k_weight, f.head_dim, f.k_inverse_rms, params.grad_k,
                      params.grad_k_weight);
}

}  // namespace eta::training::reference
