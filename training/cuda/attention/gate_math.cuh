// The gate and the logits of a score, on scores as the tensor cores leave them: a thread holds
// scores[n][e], row lane / 4 + 8 * (e / 2) of the warp's 16, column 8 n + 2 (lane % 4) + e % 2.
//
// A score costs one special-function instruction for the gate and one for the exponential. These
// bind: hence tanh.approx in place of an exponential and a reciprocal.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/fast_math.cuh"
#include "training/cuda/attention/kernel_params.h"

namespace eta::training::cuda {

using eta::cuda::Exp2;
using eta::cuda::kLn2;
using eta::cuda::kLog2E;

// tanh of the gate, and 1 - tanh^2.
struct Tilt {
  float t;
  float slope;
};

// The additive gate's logit is 100 tanh's high: it needs all bits.
template <GateKind kGate>
__device__ __forceinline__ Tilt Gate(float x) {
  if constexpr (kGate == GateKind::kAdditive) {
    const float u = Exp2(fmaxf(-2.0f * kLog2E * fabsf(x), -126.0f));
    const float r = __fdividef(1.0f, 1.0f + u);
    return {copysignf((1.0f - u) * r, x), 4.0f * u * r * r};
  } else {
    const float t = eta::cuda::Tanh(x);
    return {t, fmaf(-t, t, 1.0f)};
  }
}

// The base 2 logit of score `a`, plus `shift`.
template <GateKind kGate>
__device__ __forceinline__ float Logit(const GateFactors& gate, float a, float t, float shift) {
  if constexpr (kGate == GateKind::kSilu) {
    return fmaf(a, fmaf(t, gate.gated, gate.open), shift);
  } else if constexpr (kGate == GateKind::kAdditive) {
    return fmaf(t, gate.gated, fmaf(a, gate.full, gate.open + shift));
  } else {
    return fmaf(a, gate.full, shift);
  }
}

// Joins the four lanes that hold a row.
__device__ __forceinline__ float SumOfRow(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}
__device__ __forceinline__ float MaximumOfRow(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}

// The largest of the scores of row `half` that this lane holds.
__device__ __forceinline__ float LargestScore(const float (&scores)[8][4], int half) {
  float pairs[8];
#pragma unroll
  for (int n = 0; n < 8; ++n) pairs[n] = fmaxf(scores[n][2 * half], scores[n][2 * half + 1]);
  return fmaxf(fmaxf(fmaxf(pairs[0], pairs[1]), fmaxf(pairs[2], pairs[3])),
               fmaxf(fmaxf(pairs[4], pairs[5]), fmaxf(pairs[6], pairs[7])));
}

// The largest score of row `half`, in its first 20 bits, and its column. The row's four lanes
// agree.
struct PlacedScore {
  float score;
  int32_t column;
};
__device__ __forceinline__ PlacedScore LargestPlace(const float (&scores)[8][4], int half) {
  constexpr int kPlaces = 15;  // of this lane's columns of the row, kept in the score's last bits
  float largest = -INFINITY;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int bits = __float_as_int(scores[n][2 * half + i]);
      largest = fmaxf(largest, __int_as_float((bits & ~kPlaces) | (2 * n + i)));
    }
  }
  const float of_row = MaximumOfRow(largest);
  const int32_t lane = threadIdx.x % 32;
  const uint32_t owners = __ballot_sync(~0u, largest == of_row) >> (lane & ~3) & 15;
  const int32_t place = __float_as_int(of_row) & kPlaces;
  return {of_row, place / 2 * 8 + (__ffs(static_cast<int>(owners)) - 1) * 2 + place % 2};
}

}  // namespace eta::training::cuda
