// The tokens of compression's windows side by side, and back. Memory binds.

#include "training/cuda/native_sparse/native_sparse.h"
#include "training/cuda/rows/elements.cuh"

namespace eta::training::cuda {
namespace {

struct WindowShape {
  int32_t length;   // T
  int32_t windows;  // C
  int32_t heads;    // H
  int32_t head_dim;
};

// Of [B C H, kCompressedWindow d].
template <int kWidth>
struct WindowOf {
  WindowShape shape;
  Rows<const __nv_bfloat16> x;
  Rows<__nv_bfloat16> out;
  __device__ void operator()(int64_t row, int64_t col) const {
    const auto at = static_cast<int32_t>(row);
    const auto in_window = static_cast<int32_t>(col);
    const int32_t head = at % shape.heads;
    const int32_t window = at / shape.heads % shape.windows;
    const int32_t sequence = at / shape.heads / shape.windows;
    const int32_t token = window * kCompressedStride + in_window / shape.head_dim;
    float values[kWidth];
    x.Load(int64_t{sequence} * shape.length + token,
           head * shape.head_dim + in_window % shape.head_dim, values);
    out.Store(values, row, col);
  }
};

// Of [B T, H d]. A token is in two windows at most.
template <int kWidth>
struct WindowGrad {
  WindowShape shape;
  Rows<const __nv_bfloat16> grad_out;
  Rows<__nv_bfloat16> grad_x;
  __device__ void operator()(int64_t row, int64_t col) const {
    const auto at = static_cast<int32_t>(row);
    const auto of_heads = static_cast<int32_t>(col);
    const int32_t head = of_heads / shape.head_dim;
    const int32_t token = at % shape.length;
    const int32_t sequence = at / shape.length;
    float sum[kWidth] = {};
#pragma unroll
    for (int back = kCompressedWindow / kCompressedStride - 1; back >= 0; --back) {
      const int32_t window = token / kCompressedStride - back;
      if (window < 0 || window >= shape.windows) continue;
      const int32_t place = token - window * kCompressedStride;
      float values[kWidth];
      grad_out.Load((int64_t{sequence} * shape.windows + window) * shape.heads + head,
                    place * shape.head_dim + of_heads % shape.head_dim, values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += values[i];
    }
    grad_x.Store(sum, row, col);
  }
};

WindowShape ShapeOf(const GatherWindowsParams& params, int64_t cols) {
  return {.length = params.length,
          .windows = CompressedCount(params.length),
          .heads = static_cast<int32_t>(cols / params.head_dim),
          .head_dim = params.head_dim};
}

}  // namespace

void GatherWindows(Context& context, const GatherWindowsParams& params) {
  const WindowShape shape = ShapeOf(params, params.x.cols);
  const int64_t rows = int64_t{params.sequences} * shape.windows * shape.heads;
  const bool fours = InFours(params.x) && InFours(params.out) && params.head_dim % 4 == 0;
  WithWidth(fours, [&](auto width) {
    LaunchElements<width()>(context, "GatherWindows", rows,
                            int64_t{kCompressedWindow} * params.head_dim,
                            WindowOf<width()>{shape, RowsOf<const __nv_bfloat16>(params.x),
                                              RowsOf<__nv_bfloat16>(params.out)});
  });
}

void GatherWindowsBackward(Context& context, const GatherWindowsBackwardParams& params) {
  const GatherWindowsParams& forward = params.forward;
  const Tensor& grad_x = params.grad_x;
  const WindowShape shape = ShapeOf(forward, grad_x.cols);
  const bool fours = InFours(grad_x) && InFours(params.grad_out) && forward.head_dim % 4 == 0;
  WithWidth(fours, [&](auto width) {
    LaunchElements<width()>(context, "GatherWindowsBackward",
                            int64_t{forward.sequences} * forward.length, grad_x.cols,
                            WindowGrad<width()>{shape, RowsOf<const __nv_bfloat16>(params.grad_out),
                                                RowsOf<__nv_bfloat16>(grad_x)});
  });
}

}  // namespace eta::training::cuda
