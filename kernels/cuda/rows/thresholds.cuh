// Shared by the two forms of PredictThresholds: pointwise.cu and append_decode.cu.
#pragma once

#include <cstdint>

#include "kernels/cuda/host/ops.h"

namespace eta::cuda {

struct ThresholdArgs {
  const float* q;       // [R, width]
  const float* weight;  // [num_heads, width]; null: nothing is predicted
  const float* bias;
  float* out;
  int64_t q_stride;
  int64_t out_stride;
  int64_t width;
  int32_t num_heads;
};

inline ThresholdArgs MakeThresholdArgs(const ThresholdParams& params) {
  return {.q = params.q.data,
          .weight = params.weight,
          .bias = params.bias,
          .out = params.out.data,
          .q_stride = params.q.stride,
          .out_stride = params.out.stride,
          .width = params.q.cols,
          .num_heads = static_cast<int32_t>(params.out.cols)};
}

#ifdef __CUDACC__

__device__ __forceinline__ bool IsPredicted(const ThresholdArgs& args, const StepRow& row) {
  return args.weight != nullptr && row.frozen < 0 && row.role != RowRole::kPadding;
}

// The threshold of a row that is not predicted: frozen, or 0.
__device__ __forceinline__ float FixedThreshold(const ThresholdArgs& args, const StepView& step,
                                                const StepRow& row, int32_t head) {
  if (row.frozen < 0 || row.role == RowRole::kPadding) return 0.0f;
  return step.frozen[int64_t{row.frozen} * args.num_heads + head];
}

// Gives lane i the sum of sums[i] over the lanes of its warp, in an order that does not depend on
// i. Each exchange halves the sums that a lane is responsible for.
__device__ __forceinline__ float FoldSums(float (&sums)[32]) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 16; half > 0; half /= 2) {
    const bool upper = (lane & half) != 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (i >= half) break;
      const float mine = upper ? sums[i + half] : sums[i];
      const float other = upper ? sums[i] : sums[i + half];
      sums[i] = mine + __shfl_xor_sync(~0u, other, half);
    }
  }
  return sums[0];
}

#endif

}  // namespace eta::cuda
