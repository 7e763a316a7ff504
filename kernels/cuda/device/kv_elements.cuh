// Elements of the KV cache in registers, of any type, for kernels without tensor cores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/float8.cuh"
#include "kernels/cuda/device/kv_tile.h"
#include "kernels/dtype.h"

namespace eta::cuda {

// Widens four e4m3 and multiplies them by 2^exponent.
__device__ __forceinline__ void WidenFour(uint32_t word, int exponent, float (&to)[4]) {
  const float scale = PowerOfTwo(exponent);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t pair = WidenPair(word >> 16 * half);
    const float2 values = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    to[2 * half] = scale * values.x;
    to[2 * half + 1] = scale * values.y;
  }
}

// Loads elements i .. i + 3 of a token's key, i a multiple of 4. `head` is the beginning of the KV
// head's part of the block (KvTile::K).
template <typename T>
__device__ __forceinline__ void LoadKeyElements(const KvTile& tile, const std::byte* head,
                                                int32_t token, int32_t i, float (&to)[4]) {
  const std::byte* from = head + tile.Element(token, i);
  if constexpr (std::is_same_v<T, E4M3>) {
    const auto* exponents = reinterpret_cast<const int8_t*>(head + 2 * tile.tile_bytes());
    WidenFour(*reinterpret_cast<const uint32_t*>(from), exponents[token], to);
  } else {
    LoadElements(reinterpret_cast<const T*>(from), to);
  }
}

// Loads elements i .. i + 3 of a token's value.
template <typename T>
__device__ __forceinline__ void LoadValueElements(const KvTile& tile, const std::byte* head,
                                                  int32_t token, int32_t i, float (&to)[4]) {
  const std::byte* values = head + tile.tile_bytes();
  if constexpr (std::is_same_v<T, E4M3>) {
    const auto* exponents = reinterpret_cast<const int8_t*>(values + tile.tile_bytes());
    const auto four = *reinterpret_cast<const uint4*>(values + tile.ValueWord(token / 4, i));
    const int byte = token % 4;
    const uint32_t low = __byte_perm(four.x, four.y, 0x40 + byte * 0x11);
    const uint32_t high = __byte_perm(four.z, four.w, 0x40 + byte * 0x11);
    WidenFour((low & 0xffff) | high << 16, exponents[tile.block_size + token], to);
  } else {
    LoadElements(reinterpret_cast<const T*>(values + tile.Element(token, i)), to);
  }
}

// Calls visit(T{}) with the element type of a cache.
template <typename Visit>
void WithCacheType(DType dtype, Visit&& visit) {
  if (dtype == DType::kFloat8E4M3) {
    visit(E4M3{});
  } else {
    WithElementType(dtype, visit);
  }
}

}  // namespace eta::cuda
