// Elements of the 8-bit cache in registers (eta-semantics.md, "8-bit cache").
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

namespace eta::cuda {

// The tag of the type in template arguments.
struct E4M3 {};

// 2^exponent as a float; 0 below its normal range. The exponent is at most 127.
__device__ __forceinline__ float PowerOfTwo(int exponent) {
  const int biased = exponent + 127;
  return __int_as_float((biased > 0 ? biased : 0) << 23);
}

// The two e4m3 in the low half of `pair` as two float16, exactly.
__device__ __forceinline__ uint32_t WidenPair(uint32_t pair) {
  const __half2_raw wide =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  return static_cast<uint32_t>(wide.y) << 16 | wide.x;
}

}  // namespace eta::cuda
