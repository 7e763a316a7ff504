// The rotation of one coordinate pair. Every kernel that rotates gets the same bits.
#pragma once

#include <cuda_runtime.h>

namespace eta::cuda {

// `angle` is (cosine, sine).
__device__ __forceinline__ void RotatePair(float2 angle, float& first, float& second) {
  const float rotated = __fmaf_rn(first, angle.x, -__fmul_rn(second, angle.y));
  second = __fmaf_rn(second, angle.x, __fmul_rn(first, angle.y));
  first = rotated;
}

}  // namespace eta::cuda
