// What relative thresholds compare (eta-semantics.md, "Relative thresholds"), in float32 and as
// logarithms with base 2: the estimated mass of a block, and log-sum-exps.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/cuda/device/fast_math.cuh"
#include "kernels/relative_threshold.h"

namespace eta::cuda {

// What the block size fixes. n = b - 1 keys beside the outlier.
struct MassRule {
  float log_count;  // log2 n; -infinity for n = 0
  float reach;      // g, the largest deviation that n Gaussian keys are expected to hold
};

inline MassRule MakeMassRule(int32_t block_size) {
  const auto others = static_cast<float>(block_size - 1);
  return {.log_count = block_size > 1 ? std::log2(others) : -INFINITY,
          .reach = block_size > 2 ? std::sqrt(2.0f * std::log(others)) : 0.0f};
}

// log2(2^a + 2^b); not a number if a or b is none. At most one may be -infinity.
__device__ __forceinline__ float LogAdd2(float a, float b) {
  return fmaxf(a, b) + Log2(1.0f + Exp2(-fabsf(a - b)));
}

// l_j. `gaussian`: log2 n + m log2 e; `deviation`: sd; `outlier`: o log2 e.
__device__ __forceinline__ float BlockMass(const MassRule& rule, float gaussian, float deviation,
                                           float outlier) {
  const float held = fminf(deviation, rule.reach);
  const float lift = held * (deviation - 0.5f * held);
  return LogAdd2(fmaf(kLog2E, lift, gaussian), outlier);
}

// A log-sum-exp that grows: sum * 2^max. Two of them add up to the same in either order.
struct LogSum {
  float max = -INFINITY;
  float sum = 0.0f;

  __device__ __forceinline__ void Add(const LogSum& other) {
    const float top = fmaxf(max, other.max);
    // Equal maxima may be infinite. A maximum is never NaN, but a sum may be.
    sum = sum * (max == top ? 1.0f : Exp2(max - top)) +
          other.sum * (other.max == top ? 1.0f : Exp2(other.max - top));
    max = top;
  }
  // Adds 2^log.
  __device__ __forceinline__ void Add(float log) {
    if (log == log) {
      Add({log, log == -INFINITY ? 0.0f : 1.0f});
    } else {
      sum = log;
    }
  }
  __device__ __forceinline__ float Log() const { return max + log2f(sum); }
};

// Adds up the lanes whose numbers differ in the bits from `first` up to `end`, powers of two. Each
// of them gets the sum.
__device__ __forceinline__ void AddOfLanes(LogSum& of_lane, int first, int end) {
#pragma unroll
  for (int step = first; step < end; step *= 2) {
    of_lane.Add({__shfl_xor_sync(~0u, of_lane.max, step), __shfl_xor_sync(~0u, of_lane.sum, step)});
  }
}

}  // namespace eta::cuda
