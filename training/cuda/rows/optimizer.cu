// AdamW, the sum of squares that clipping needs, and weighted row sums. Memory binds.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "training/cuda/rows/elements.cuh"
#include "training/cuda/rows/ops.h"

namespace eta::training::cuda {
namespace {

constexpr int kSquareBlocks = 1024;

// The block's sum of the threads' values, in thread 0. The order does not depend on time.
template <typename T>
__device__ T SumOfBlock(T value) {
  __shared__ T sums[kThreads / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x != 0) return T{};
  T total = {};
  for (const T sum : sums) total += sum;
  return total;
}

__global__ void __launch_bounds__(kThreads)
    SquareParts(const float* values, int64_t count, double* parts) {
  Begin();
  double sum = 0.0;
  for (int64_t i = ThreadIndex(); i < count; i += int64_t{gridDim.x} * kThreads) {
    sum += static_cast<double>(values[i]) * values[i];
  }
  sum = SumOfBlock(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

struct AdamWArgs {
  AdamWParams params;
  float first_share;   // 1 / (1 - beta1^step)
  float second_share;  // likewise
};

__global__ void __launch_bounds__(kThreads) UpdateValues(const __grid_constant__ AdamWArgs args) {
  Begin();
  const AdamWParams& p = args.params;
  const int64_t i = ThreadIndex();
  if (i >= p.count) return;
  const float gradient = p.gradient_scale * p.gradients[i];
  const float first = p.beta1 * p.first[i] + (1.0f - p.beta1) * gradient;
  const float second = p.beta2 * p.second[i] + (1.0f - p.beta2) * gradient * gradient;
  const float value = p.values[i];
  const float move = first * args.first_share / (sqrtf(second * args.second_share) + p.epsilon) +
                     p.weight_decay * value;
  p.first[i] = first;
  p.second[i] = second;
  p.values[i] = value - p.rate * move;
  if (p.rounded != nullptr) {
    static_cast<__nv_bfloat16*>(p.rounded)[i] = __float2bfloat16_rn(value - p.rate * move);
  }
}

// A block takes a head.
__global__ void __launch_bounds__(kThreads)
    WeighRows(const __grid_constant__ WeighRowSumsParams params) {
  Begin();
  float sum = 0.0f;
  for (int32_t b = 0; b < params.sequences; ++b) {
    const float* row = params.x + (int64_t{b} * params.heads + blockIdx.x) * params.length;
    for (int32_t t = threadIdx.x; t < params.length; t += kThreads) {
      sum = fmaf(row[t], params.weights[t], sum);
    }
  }
  sum = SumOfBlock(sum);
  if (threadIdx.x == 0) params.out[blockIdx.x] += sum;
}

}  // namespace

void WeighRowSums(Context& context, const WeighRowSumsParams& params) {
  if (params.out == nullptr) return;
  eta::cuda::Launch(context.device, "WeighRowSums",
                    {.grid = static_cast<unsigned>(params.heads), .block = kThreads}, WeighRows,
                    params);
}

double SumSquares(Context& context, const float* values, int64_t count) {
  auto* parts = static_cast<double*>(
      context.workspace.Get(Workspace::Use::kSums, kSquareBlocks * sizeof(double)));
  if (parts == nullptr) return std::numeric_limits<double>::quiet_NaN();
  const unsigned blocks = std::clamp(BlocksOf(count), 1u, unsigned{kSquareBlocks});
  eta::cuda::Launch(context.device, "SumSquares", {.grid = blocks, .block = kThreads}, SquareParts,
                    values, count, parts);
  std::vector<double> host(blocks);
  eta::cuda::Device& device = context.device;
  device.Check(cudaMemcpyAsync(host.data(), parts, blocks * sizeof(double), cudaMemcpyDeviceToHost,
                               device.stream()),
               "SumSquares");
  device.Check(cudaStreamSynchronize(device.stream()), "SumSquares");
  if (!device.status().ok()) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0.0;
  for (const double part : host) sum += part;
  return sum;
}

void AdamW(Context& context, const AdamWParams& params) {
  const auto share = [&](float beta) {
    return static_cast<float>(
        1.0 / (1.0 - std::pow(static_cast<double>(beta), static_cast<double>(params.step))));
  };
  const AdamWArgs args = {params, share(params.beta1), share(params.beta2)};
  eta::cuda::Launch(context.device, "AdamW", {.grid = BlocksOf(params.count), .block = kThreads},
                    UpdateValues, args);
}

}  // namespace eta::training::cuda
