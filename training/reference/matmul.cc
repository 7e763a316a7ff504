// Products: out = x W^T, and its gradients grad_out W and grad_out^T x.

#include "training/reference/elements.h"
#include "training/reference/ops.h"

namespace eta::training::reference {

void MatMul(const MatMulParams& params) {
  const Tensor& x = params.x;
  const Tensor& w = params.weight;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t n = 0; n < w.rows; ++n) {
      double sum = params.accumulate ? Get(params.out, r, n) : 0.0;
      for (int64_t i = 0; i < x.cols; ++i) sum += Get(x, r, i) * Get(w, n, i);
      Set(params.out, r, n, sum);
    }
  }
}

void MatMulInput(const MatMulInputParams& params) {
  const Tensor& grad = params.grad_out;
  const Tensor& w = params.weight;
  for (int64_t r = 0; r < grad.rows; ++r) {
    for (int64_t i = 0; i < w.cols; ++i) {
      double sum = 0.0;
      for (int64_t n = 0; n < w.rows; ++n) sum += Get(grad, r, n) * Get(w, n, i);
      Set(params.grad_x, r, i, sum);
    }
  }
}

void MatMulWeight(const MatMulWeightParams& params) {
  const Tensor& grad = params.grad_out;
  const Tensor& x = params.x;
  for (int64_t n = 0; n < grad.cols; ++n) {
    for (int64_t i = 0; i < x.cols; ++i) {
      double sum = 0.0;
      for (int64_t r = 0; r < x.rows; ++r) sum += Get(grad, r, n) * Get(x, r, i);
      AddTo(params.grad_weight, n * x.cols + i, sum);
    }
  }
}

}  // namespace eta::training::reference
