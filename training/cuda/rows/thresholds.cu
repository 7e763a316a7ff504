// The threshold predictor, tau = q W^T + b, and its gradients, as products of tensor cores. W has
// float32 and q bfloat16 elements: W is taken as a sum of two bfloat16 matrices. Heads are padded
// to whole rows of the library's tiles.

#include "training/cuda/rows/column_sums.cuh"
#include "training/cuda/rows/elements.cuh"
#include "training/cuda/rows/ops.h"

namespace eta::training::cuda {
namespace {

constexpr int64_t kHeadBoundary = 16;

int64_t PaddedHeads(int64_t heads) {
  return (heads + kHeadBoundary - 1) / kHeadBoundary * kHeadBoundary;
}

// high + low = weight, up to the rounding of low; rows from `rows` on are 0.
__global__ void __launch_bounds__(kThreads)
    SplitWeight(const float* weight, int64_t rows, int64_t padded_rows, int64_t cols,
                __nv_bfloat16* high, __nv_bfloat16* low) {
  Begin();
  const int64_t index = ThreadIndex();
  if (index >= padded_rows * cols) return;
  const float value = index < rows * cols ? weight[index] : 0.0f;
  high[index] = __float2bfloat16_rn(value);
  low[index] = __float2bfloat16_rn(value - __bfloat162float(high[index]));
}

// tau = products + bias; without products tau = bias.
__global__ void __launch_bounds__(kThreads)
    AddThresholdBias(const float* products, int64_t padded_heads, const float* bias, int64_t rows,
                     int32_t heads, float* tau) {
  Begin();
  const int64_t index = ThreadIndex();
  if (index >= rows * heads) return;
  const int64_t row = index / heads;
  const int64_t head = index % heads;
  tau[index] = bias[head] + (products != nullptr ? products[row * padded_heads + head] : 0.0f);
}

// grad_tau [rows, heads] as bfloat16 [rows, padded_heads].
__global__ void __launch_bounds__(kThreads)
    PadGradient(const float* grad_tau, int64_t rows, int32_t heads, int64_t padded_heads,
                __nv_bfloat16* out) {
  Begin();
  const int64_t index = ThreadIndex();
  if (index >= rows * padded_heads) return;
  const int64_t head = index % padded_heads;
  out[index] =
      __float2bfloat16_rn(head < heads ? grad_tau[index / padded_heads * heads + head] : 0.0f);
}

__global__ void __launch_bounds__(kThreads) AddTo(const float* from, int64_t count, float* to) {
  Begin();
  const int64_t index = ThreadIndex();
  if (index < count) to[index] += from[index];
}

struct GradTauOf {
  const float* grad_tau;
  int64_t heads;
  template <int kWidth>
  __device__ void operator()(int64_t row, int64_t col, float (&out)[kWidth]) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) out[i] = grad_tau[row * heads + col + i];
  }
};

Tensor Matrix(void* data, DType dtype, int64_t rows, int64_t cols) {
  return {.data = data, .dtype = dtype, .rows = rows, .cols = cols, .stride = cols};
}

// W of padded heads as two matrices, and room for `more` bytes after them.
struct Predictor {
  Tensor high;
  Tensor low;
  std::byte* rest = nullptr;
};

Predictor Split(Context& context, const float* weight, int64_t heads, int64_t width, size_t more) {
  const int64_t padded = PaddedHeads(heads);
  const auto bytes = static_cast<size_t>(padded * width) * sizeof(__nv_bfloat16);
  auto* data =
      static_cast<std::byte*>(context.workspace.Get(Workspace::Use::kLogits, 2 * bytes + more));
  if (data == nullptr) return {};
  const Predictor split = {.high = Matrix(data, DType::kBFloat16, padded, width),
                           .low = Matrix(data + bytes, DType::kBFloat16, padded, width),
                           .rest = data + 2 * bytes};
  eta::cuda::Launch(context.device, "thresholds",
                    {.grid = BlocksOf(padded * width), .block = kThreads}, SplitWeight, weight,
                    heads, padded, width, split.high.as<__nv_bfloat16>(),
                    split.low.as<__nv_bfloat16>());
  return split;
}

}  // namespace

void PredictThresholds(Context& context, Products& products, const ThresholdParams& params) {
  const int64_t rows = params.q.rows;
  const int64_t padded = PaddedHeads(params.num_heads);
  const float* sums = nullptr;
  if (params.weight != nullptr) {
    const Predictor split = Split(context, params.weight, params.num_heads, params.q.cols,
                                  static_cast<size_t>(rows * padded) * sizeof(float));
    if (split.rest == nullptr) return;
    const Tensor out = Matrix(split.rest, DType::kFloat32, rows, padded);
    products.Multiply({params.q}, {split.low, true}, out, false);
    products.Multiply({params.q}, {split.high, true}, out, true);
    sums = out.as<float>();
  }
  eta::cuda::Launch(
      context.device, "thresholds", {.grid = BlocksOf(rows * params.num_heads), .block = kThreads},
      AddThresholdBias, sums, padded, params.bias, rows, params.num_heads, params.tau);
}

void ThresholdsBackward(Context& context, Products& products,
                        const ThresholdBackwardParams& params) {
  const int64_t rows = params.q.rows;
  const int64_t heads = params.num_heads;
  const int64_t padded = PaddedHeads(heads);
  const int64_t width = params.q.cols;
  AddColumnSums(context, "thresholds", GradTauOf{params.grad_tau, heads}, rows, heads, heads, false,
                params.grad_bias);
  if (params.weight == nullptr) return;
  const size_t grad_bytes = static_cast<size_t>(rows * padded) * sizeof(__nv_bfloat16);
  const size_t weight_bytes = static_cast<size_t>(padded * width) * sizeof(float);
  const Predictor split = Split(context, params.weight, heads, width, grad_bytes + weight_bytes);
  if (split.rest == nullptr) return;
  // Products want factors on 16 bytes; grad_bytes is a multiple of 32.
  const Tensor grad = Matrix(split.rest, DType::kBFloat16, rows, padded);
  eta::cuda::Launch(context.device, "thresholds",
                    {.grid = BlocksOf(rows * padded), .block = kThreads}, PadGradient,
                    params.grad_tau, rows, params.num_heads, padded, grad.as<__nv_bfloat16>());
  if (params.grad_weight != nullptr) {
    const Tensor sums = Matrix(split.rest + grad_bytes, DType::kFloat32, padded, width);
    products.Multiply({grad, true}, {params.q}, sums, false);
    eta::cuda::Launch(
        context.device, "thresholds", {.grid = BlocksOf(heads * width), .block = kThreads}, AddTo,
        static_cast<const float*>(sums.as<float>()), heads * width, params.grad_weight);
  }
  products.Multiply({grad}, {split.high}, params.grad_q, true);
}

}  // namespace eta::training::cuda
