// One row's vector of one head in the registers of a warp, from norm and rotation into the KV
// cache.
#pragma once

#include <type_traits>

#include "kernels/cuda/device/kv_elements.cuh"
#include "kernels/cuda/rows/rope.cuh"
#include "kernels/quantize.h"

namespace eta::cuda {

// The largest magnitude of the lanes. NaN counts as larger than all others.
__device__ __forceinline__ float LargestOfWarp(float magnitude) {
  return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(magnitude)));
}

// As ScaleExponent of quantize.h. 448 is 1.75 * 2^8.
__device__ __forceinline__ int32_t ScaleExponentOf(float largest) {
  const int32_t bits = __float_as_int(largest);
  const int32_t exponent = (bits >> 23) - 127 - 8 + ((bits & 0x7FFFFF) > 0x600000 ? 1 : 0);
  return min(max(exponent, kMinScaleExponent), kMaxScaleExponent);
}

// Rounds to nearest even.
__device__ __forceinline__ uint16_t ToE4M3(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
}

// A vector spread over the lanes of a warp. For n = 0 and 1 and u = l + 32 n, lane l has the
// elements 2u and 2u + 1 of the first half and of the second half. Elements beyond head_dim are
// zero.
struct HeadVector {
  static constexpr int kUnits = kMaxHeadDim / 128;
  float low[kUnits][2];
  float high[kUnits][2];

  // Calls visit(n, 2u) for the units u that exist.
  template <typename Visit>
  static __device__ __forceinline__ void ForUnits(int32_t head_dim, Visit&& visit) {
#pragma unroll
    for (int n = 0; n < kUnits; ++n) {
      const int32_t i = 2 * static_cast<int32_t>(threadIdx.x % 32 + 32 * n);
      if (i < head_dim / 2) visit(n, i);
    }
  }

  __device__ __forceinline__ void Load(const float* from, int32_t head_dim) {
#pragma unroll
    for (int n = 0; n < kUnits; ++n) low[n][0] = low[n][1] = high[n][0] = high[n][1] = 0.0f;
    ForUnits(head_dim, [&](int n, int32_t i) {
      LoadElements(from + i, low[n]);
      LoadElements(from + head_dim / 2 + i, high[n]);
    });
  }
  __device__ __forceinline__ void Store(float* to, int32_t head_dim) const {
    ForUnits(head_dim, [&](int n, int32_t i) {
      StoreElements(low[n], to + i);
      StoreElements(high[n], to + head_dim / 2 + i);
    });
  }
  // To a root mean square of 1, times `factors`.
  __device__ __forceinline__ void Normalise(const HeadVector& factors, int32_t head_dim,
                                            float eps) {
    float squares = 0.0f;
#pragma unroll
    for (int n = 0; n < kUnits; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        squares = fmaf(high[n][j], high[n][j], fmaf(low[n][j], low[n][j], squares));
      }
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) squares += __shfl_xor_sync(~0u, squares, lanes);
    const float scale = 1.0f / sqrtf(squares / static_cast<float>(head_dim) + eps);
#pragma unroll
    for (int n = 0; n < kUnits; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        low[n][j] = low[n][j] * scale * factors.low[n][j];
        high[n][j] = high[n][j] * scale * factors.high[n][j];
      }
    }
  }
  // `angles`: those of the row, [d / 2].
  __device__ __forceinline__ void Rotate(const float2* angles, int32_t head_dim) {
    ForUnits(head_dim, [&](int n, int32_t i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) RotatePair(angles[i + j], low[n][j], high[n][j]);
    });
  }
  __device__ __forceinline__ float Largest() const {
    float largest = 0.0f;
#pragma unroll
    for (int n = 0; n < kUnits; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        largest =
            __uint_as_float(max(__float_as_uint(largest), max(__float_as_uint(fabsf(low[n][j])),
                                                              __float_as_uint(fabsf(high[n][j])))));
      }
    }
    return LargestOfWarp(largest);
  }
};

// Vectors that a warp loads at once.
inline constexpr int kHeldVectors = 4;

// The thread block's kWarps warps take `count` vectors in turns. Calls visit(n, i) for those that
// this warp holds at once: i = first, first + kWarps, ...
template <int kWarps, typename Visit>
__device__ __forceinline__ void ForHeldVectors(int32_t first, int32_t count, Visit&& visit) {
#pragma unroll
  for (int n = 0; n < kHeldVectors; ++n) {
    const int32_t i = first + n * kWarps;
    if (i >= count) break;
    visit(n, i);
  }
}

// What the cache keeps of a vector.
template <typename T>
__device__ __forceinline__ HeadVector AsStored(const HeadVector& vector) {
  HeadVector stored;
  int32_t exponent = 0;
  if constexpr (std::is_same_v<T, E4M3>) exponent = ScaleExponentOf(vector.Largest());
  const auto round = [&](const float(&from)[2], float(&to)[2]) {
    if constexpr (std::is_same_v<T, E4M3>) {
      const float scale = PowerOfTwo(-exponent);
      float four[4];
      WidenFour(ToE4M3(from[0] * scale, from[1] * scale), exponent, four);
      to[0] = four[0];
      to[1] = four[1];
    } else {
      to[0] = ToFloat(FromFloat<T>(from[0]));
      to[1] = ToFloat(FromFloat<T>(from[1]));
    }
  };
#pragma unroll
  for (int n = 0; n < HeadVector::kUnits; ++n) {
    round(vector.low[n], stored.low[n]);
    round(vector.high[n], stored.high[n]);
  }
  return stored;
}

// Stores a row's K, or with `value` its V, as token `token` of a block.
template <typename T>
__device__ __forceinline__ void StoreToken(const HeadVector& vector, const KvTile& tile,
                                           std::byte* tiles, int32_t block, int32_t kv_head,
                                           int32_t token, bool value) {
  const int32_t d = tile.head_dim;
  std::byte* to = tiles + (value ? tile.V(block, kv_head) : tile.K(block, kv_head));
  if constexpr (std::is_same_v<T, E4M3>) {
    const int32_t exponent = ScaleExponentOf(vector.Largest());
    const float scale = PowerOfTwo(-exponent);
    const auto store = [&](const float(&pair)[2], int32_t i) {
      const uint16_t bytes = ToE4M3(pair[0] * scale, pair[1] * scale);
      if (value) {
        std::byte* word = to + tile.ValueWord(token / 4, i) + token % 4;
        word[0] = static_cast<std::byte>(bytes & 0xFF);
        word[4] = static_cast<std::byte>(bytes >> 8);
      } else {
        *reinterpret_cast<uint16_t*>(to + tile.Element(token, i)) = bytes;
      }
    };
    HeadVector::ForUnits(d, [&](int n, int32_t i) {
      store(vector.low[n], i);
      store(vector.high[n], d / 2 + i);
    });
    if (threadIdx.x % 32 == 0) {
      auto* exponents = reinterpret_cast<int8_t*>(tiles + tile.Exponents(block, kv_head));
      exponents[(value ? tile.block_size : 0) + token] = static_cast<int8_t>(exponent);
    }
  } else {
    HeadVector::ForUnits(d, [&](int n, int32_t i) {
      StoreElements(vector.low[n], reinterpret_cast<T*>(to + tile.Element(token, i)));
      StoreElements(vector.high[n], reinterpret_cast<T*>(to + tile.Element(token, d / 2 + i)));
    });
  }
}

}  // namespace eta::cuda
