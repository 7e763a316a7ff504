// RmsNorm of rows and of heads, and their gradients. With y = x r w and r = 1 / sqrt(mean x^2 +
// eps): dx = r (w dy - x r^2 mean(x w dy)), dw = sum over rows of x r dy. A warp takes a row (or a
// head of a row). Memory binds.

#include "training/cuda/rows/column_sums.cuh"
#include "training/cuda/rows/elements.cuh"
#include "training/cuda/rows/ops.h"

namespace eta::training::cuda {
namespace {

constexpr int kWarps = kThreads / 32;

struct NormShape {
  int64_t rows;
  int32_t width;  // of a norm
  int32_t norms;  // of a row
  float eps;
};

// The warp's row, and its norm's first column.
struct NormPlace {
  int64_t index;
  int64_t row;
  int64_t col;
};

__device__ __forceinline__ NormPlace PlaceOf(const NormShape& shape) {
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  return {index, index / shape.norms, index % shape.norms * shape.width};
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    Normalise(NormShape shape, Rows<const T> x, const float* weight, Rows<__nv_bfloat16> out,
              float* inverse_rms) {
  Begin();
  const auto [index, row, first] = PlaceOf(shape);
  if (row >= shape.rows) return;
  const int lane = threadIdx.x % 32;
  float squares = 0.0f;
  for (int32_t i = lane * kWidth; i < shape.width; i += 32 * kWidth) {
    float values[kWidth];
    x.Load(row, first + i, values);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) squares = fmaf(values[j], values[j], squares);
  }
  const float inverse = rsqrtf(SumOfWarp(squares) / static_cast<float>(shape.width) + shape.eps);
  for (int32_t i = lane * kWidth; i < shape.width; i += 32 * kWidth) {
    float values[kWidth];
    x.Load(row, first + i, values);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] *= inverse * weight[i + j];
    out.Store(values, row, first + i);
  }
  if (lane == 0) inverse_rms[index] = inverse;
}

// grad_x = (or +=, if kAdd) the gradient of x.
template <typename T, int kWidth, bool kAdd, typename Out>
__global__ void __launch_bounds__(kThreads)
    NormaliseGrad(NormShape shape, Rows<const T> x, const float* weight, const float* inverse_rms,
                  Rows<const __nv_bfloat16> grad_out, Rows<Out> grad_x) {
  Begin();
  const auto [index, row, first] = PlaceOf(shape);
  if (row >= shape.rows) return;
  const int lane = threadIdx.x % 32;
  float mean = 0.0f;
  for (int32_t i = lane * kWidth; i < shape.width; i += 32 * kWidth) {
    float values[kWidth];
    float grad[kWidth];
    x.Load(row, first + i, values);
    grad_out.Load(row, first + i, grad);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) mean = fmaf(values[j] * weight[i + j], grad[j], mean);
  }
  const float inverse = inverse_rms[index];
  mean = SumOfWarp(mean) / static_cast<float>(shape.width) * inverse * inverse;
  for (int32_t i = lane * kWidth; i < shape.width; i += 32 * kWidth) {
    float values[kWidth];
    float grad[kWidth];
    float sum[kWidth] = {};
    x.Load(row, first + i, values);
    grad_out.Load(row, first + i, grad);
    if constexpr (kAdd) grad_x.Load(row, first + i, sum);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      sum[j] += inverse * (weight[i + j] * grad[j] - values[j] * mean);
    }
    grad_x.Store(sum, row, first + i);
  }
}

// A row's part of the weight's gradient; `width` columns share an inverse_rms.
template <typename T>
struct WeightGrad {
  Rows<const T> x;
  Rows<const __nv_bfloat16> grad_out;
  const float* inverse_rms;
  int32_t width;
  int32_t norms;
  template <int kWidth>
  __device__ void operator()(int64_t row, int64_t col, float (&out)[kWidth]) const {
    float grad[kWidth];
    x.Load(row, col, out);
    grad_out.Load(row, col, grad);
    const float inverse = inverse_rms[row * norms + col / width];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) out[i] *= inverse * grad[i];
  }
};

NormShape ShapeOf(const Tensor& x, int32_t width, float eps) {
  return {
      .rows = x.rows, .width = width, .norms = static_cast<int32_t>(x.cols / width), .eps = eps};
}

eta::cuda::LaunchShape LaunchOf(const NormShape& shape) {
  return {.grid = BlocksOf(shape.rows * shape.norms, kWarps), .block = kThreads};
}

void Norm(Context& context, const Tensor& x, const float* weight, const NormShape& shape,
          const Tensor& out, float* inverse_rms) {
  WithType(x.dtype, [&]<typename T>(T) {
    WithWidth(InFours(x) && InFours(out) && shape.width % 4 == 0, [&](auto width) {
      eta::cuda::Launch(context.device, "RmsNorm", LaunchOf(shape), Normalise<T, width()>, shape,
                        RowsOf<const T>(x), weight, RowsOf<__nv_bfloat16>(out), inverse_rms);
    });
  });
}

template <bool kAdd>
void NormBackward(Context& context, const Tensor& x, const float* weight, const NormShape& shape,
                  const float* inverse_rms, const Tensor& grad_out, const Tensor& grad_x,
                  float* grad_weight) {
  const bool fours = InFours(x) && InFours(grad_out) && InFours(grad_x) && shape.width % 4 == 0;
  WithType(x.dtype, [&]<typename T>(T) {
    // The weight's gradient first, since grad_x may be grad_out.
    AddColumnSums(context, "RmsNormBackward",
                  WeightGrad<T>{RowsOf<const T>(x), RowsOf<const __nv_bfloat16>(grad_out),
                                inverse_rms, shape.width, shape.norms},
                  x.rows, x.cols, shape.width, fours, grad_weight);
    WithType(grad_x.dtype, [&]<typename Out>(Out) {
      WithWidth(fours, [&](auto width) {
        eta::cuda::Launch(context.device, "RmsNormBackward", LaunchOf(shape),
                          NormaliseGrad<T, width(), kAdd, Out>, shape, RowsOf<const T>(x), weight,
                          inverse_rms, RowsOf<const __nv_bfloat16>(grad_out), RowsOf<Out>(grad_x));
      });
    });
  });
}

}  // namespace

void RmsNorm(Context& context, const RmsNormParams& params) {
  Norm(context, params.x, params.weight,
       ShapeOf(params.x, static_cast<int32_t>(params.x.cols), params.eps), params.out,
       params.inverse_rms);
}

void RmsNormBackward(Context& context, const RmsNormBackwardParams& params) {
  NormBackward<true>(context, params.x, params.weight,
                     ShapeOf(params.x, static_cast<int32_t>(params.x.cols), 0.0f),
                     params.inverse_rms, params.grad_out, params.grad_x, params.grad_weight);
}

void NormHeads(Context& context, const NormHeadsParams& params) {
  Norm(context, params.q, params.q_weight, ShapeOf(params.q, params.head_dim, params.eps),
       params.q_out, params.q_inverse_rms);
  Norm(context, params.k, params.k_weight, ShapeOf(params.k, params.head_dim, params.eps),
       params.k_out, params.k_inverse_rms);
}

void NormHeadsBackward(Context& context, const NormHeadsBackwardParams& params) {
  const NormHeadsParams& f = params.forward;
  NormBackward<false>(context, f.q, f.q_weight, ShapeOf(f.q, f.head_dim, f.eps), f.q_inverse_rms,
                      params.grad_q, params.grad_q, params.grad_q_weight);
  NormBackward<false>(context, f.k, f.k_weight, ShapeOf(f.k, f.head_dim, f.eps), f.k_inverse_rms,
                      params.grad_k, params.grad_k, params.grad_k_weight);
}

}  // namespace eta::training::cuda
