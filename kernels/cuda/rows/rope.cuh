// The rotation of one coordinate pair, the same bits in every kernel that rotates.
#pragma once

#include <cuda_runtime.h>

namespace eta::cuda {

// `angle`: cosine and sine.
__device__ __forceinline__ void RotatePair(float2 angle, float& first, float& second) {
  const float rotated = __fmaf_rn(first, angle.x, -__fmul_rn(second, angle.y));
  second = __fmaf_rn(second, angle.x, __fmul_rn(first, angle.y));
  first = rotated;
}

}  // namespace eta::cuda
