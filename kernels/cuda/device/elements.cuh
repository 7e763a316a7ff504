// Elements of activations, weights and the KV cache in registers: loads widen to float32, stores
// round to nearest even. And what every product with weights does with its own. Element types are
// float, __half and __nv_bfloat16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/dtype.h"
#include "kernels/params/layer.h"

namespace eta::cuda {

__device__ __forceinline__ float ToFloat(float value) {
  return value;
}
__device__ __forceinline__ float ToFloat(__half value) {
  return __half2float(value);
}
__device__ __forceinline__ float ToFloat(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

template <typename T>
__device__ __forceinline__ T FromFloat(float value);
template <>
__device__ __forceinline__ float FromFloat<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __half FromFloat<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// `count` neighbouring elements that one instruction moves.
template <typename T, int count>
struct alignas(sizeof(T) * count) ElementVector {
  static_assert(sizeof(T) * count <= 16);
  T elements[count];
};

// How many neighbours one instruction moves if `count` are wanted.
template <typename T, int count>
inline constexpr int kVectorElements = sizeof(T) * count <= 16 ? count
                                                               : static_cast<int>(16 / sizeof(T));

// Reads or writes `count` neighbours (a power of two). The address is a multiple of their size, or
// of 16 bytes if that is less.
template <typename T, int count>
__device__ __forceinline__ void LoadElements(const T* from, float (&to)[count]) {
  constexpr int kPart = kVectorElements<T, count>;
#pragma unroll
  for (int begin = 0; begin < count; begin += kPart) {
    const auto part = *reinterpret_cast<const ElementVector<T, kPart>*>(from + begin);
#pragma unroll
    for (int i = 0; i < kPart; ++i) to[begin + i] = ToFloat(part.elements[i]);
  }
}

template <typename T, int count>
__device__ __forceinline__ void StoreElements(const float (&from)[count], T* to) {
  constexpr int kPart = kVectorElements<T, count>;
#pragma unroll
  for (int begin = 0; begin < count; begin += kPart) {
    ElementVector<T, kPart> part;
#pragma unroll
    for (int i = 0; i < kPart; ++i) part.elements[i] = FromFloat<T>(from[begin + i]);
    *reinterpret_cast<ElementVector<T, kPart>*>(to + begin) = part;
  }
}

// Weights are read once a step, so they need no room in L1.
__device__ __forceinline__ uint4 LoadWeights(const std::byte* from) {
  uint4 to;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
               : "l"(from));
  return to;
}

// Stores `value` as element `at` of `to`, which has floats or Ts.
template <typename T>
__device__ __forceinline__ void StoreProduct(std::byte* to, bool floats, int64_t at, float value) {
  if (floats) {
    reinterpret_cast<float*>(to)[at] = value;
  } else {
    reinterpret_cast<T*>(to)[at] = FromFloat<T>(value);
  }
}

__device__ __forceinline__ float SwiGluOf(float gate, float up) {
  return gate / (1.0f + expf(-gate)) * up;
}

// NaN stays NaN. GELU in its form with tanh is x sigma(2 sqrt(2/pi) (x + 0.044715 x^3)).
__device__ __forceinline__ float Activate(Activation activation, float gate, float up) {
  if (activation == Activation::kSilu) return SwiGluOf(gate, up);
  if (activation == Activation::kGelu) {
    constexpr float kLinear = 1.5957691216f;
    const float slope = fmaf(0.044715f * kLinear * gate, gate, kLinear);
    return gate / (1.0f + expf(-gate * slope)) * up;
  }
  const float g = gate > kClampedLimit ? kClampedLimit : gate;
  const float u = up > kClampedLimit ? kClampedLimit : (up < -kClampedLimit ? -kClampedLimit : up);
  return g / (1.0f + expf(-kClampedSlope * g)) * (u + 1.0f);
}

// Stores what the gate does with `up` as element `at` of `to`, which has Ts.
template <typename T>
__device__ __forceinline__ void StoreActivated(std::byte* to, int64_t at, Activation activation,
                                               float gate, float up) {
  reinterpret_cast<T*>(to)[at] = FromFloat<T>(Activate(activation, gate, up));
}

// Calls visit(T{}) with the element type of a floating-point `dtype`.
template <typename Visit>
void WithElementType(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::kFloat16:
      return std::forward<Visit>(visit)(__half{});
    case DType::kBFloat16:
      return std::forward<Visit>(visit)(__nv_bfloat16{});
    default:
      return std::forward<Visit>(visit)(float{});
  }
}

}  // namespace eta::cuda
