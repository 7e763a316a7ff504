// Matrix products of a warp on tensor cores (sm_80 upward), and the shared-memory loads that feed
// them. Fragments follow PTX's m16n8k16. With r = lane / 4 and c = 2 * (lane % 4) a lane holds:
//
//   A (16 x 16, row-major)  a[0] (r, c..c+1)  a[1] (r+8, c..)  a[2] (r, c+8..)  a[3] (r+8, c+8..)
//   B (16 x 8, "col")       b[0] (c..c+1, r)  b[1] (c+8.., r)
//   C (16 x 8, float32)     c[0..1] (r, c..c+1)  c[2..3] (r+8, c..c+1)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace eta::cuda {

using Half = __half;
using BFloat16 = __nv_bfloat16;

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// c += a * b, float32 sums of products of Element (Half or BFloat16).
template <typename Element>
__device__ __forceinline__ void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  if constexpr (std::is_same_v<Element, Half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// c += a * b, exact sums of products of bytes with signs. Fragments follow PTX's m16n8k32: a lane
// has the four neighbours from 4 (lane % 4) on where those above have a pair, and 16 lie between
// halves.
__device__ __forceinline__ void MmaBytes(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8 x 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l /
// 8. It receives the elements (l / 4, 2 (l % 4) .. + 1) of matrix i in m[i].
__device__ __forceinline__ void LoadMatrices(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address));
}

// Loads four 8 x 8 matrices likewise, each transposed.
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address));
}

// Transposes the 8 x 8 matrix of 16-bit elements that the warp holds.
__device__ __forceinline__ uint32_t TransposeMatrix(uint32_t m) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(m));
  return out;
}

// Packs two floats as a pair of Elements, the first in the low half.
template <typename Element>
__device__ __forceinline__ uint32_t PackPair(float low, float high) {
  if constexpr (std::is_same_v<Element, Half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// Unpacks a pair of Elements as two floats.
template <typename Element>
__device__ __forceinline__ float2 UnpackPair(uint32_t pair) {
  if constexpr (std::is_same_v<Element, Half>) {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  } else {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
  }
}

}  // namespace eta::cuda
