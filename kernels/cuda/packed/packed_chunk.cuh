// A lane's share of a chunk of packed weights (packed_layout.h) in registers: loads from global or
// shared memory, and the exact 16-bit numbers that tensor cores multiply. Products and unpacking
// share it.
//
// An integer of up to 8 bits, and an e4m3, is exact in float16 and in bfloat16. So tensor cores
// multiply what is stored, and scales come after a group's sum, in float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/packed/packed_layout.h"

namespace eta::cuda::packed {

// a - b, or a * b, of two pairs of Elements.
template <typename Element>
__device__ __forceinline__ uint32_t SubtractPairs(uint32_t a, uint32_t b) {
  using Pair = std::conditional_t<std::is_same_v<Element, Half>, __half2, __nv_bfloat162>;
  const Pair pair = __hsub2(*reinterpret_cast<const Pair*>(&a), *reinterpret_cast<const Pair*>(&b));
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <typename Element>
__device__ __forceinline__ uint32_t MultiplyPairs(uint32_t a, uint32_t b) {
  using Pair = std::conditional_t<std::is_same_v<Element, Half>, __half2, __nv_bfloat162>;
  const Pair pair = __hmul2(*reinterpret_cast<const Pair*>(&a), *reinterpret_cast<const Pair*>(&b));
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// A pair of numbers whose last bits count ones: 1024 (float16) or 128 (bfloat16).
template <typename Element>
inline constexpr uint32_t kCounting = std::is_same_v<Element, Half> ? 0x64006400u : 0x43004300u;
template <typename Element>
inline constexpr uint32_t kOnes = std::is_same_v<Element, Half> ? 0x3C003C00u : 0x3F803F80u;

// (word & kMask) | bits in one instruction, which a mask and bits that are both constants do not
// become by themselves: an instruction takes one.
template <uint32_t kMask>
__device__ __forceinline__ uint32_t MaskOnto(uint32_t word, uint32_t bits) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(out) : "r"(word), "n"(kMask), "r"(bits));
  return out;
}

// The int8 in the low bytes of both halves as Elements. With t the low seven bits and s the sign it
// is t - 128 s, and both numbers below are exact.
template <typename Element>
__device__ __forceinline__ uint32_t WidenInt8(uint32_t word) {
  return SubtractPairs<Element>(MaskOnto<0x007F007Fu>(word, kCounting<Element>),
                                MaskOnto<0x00800080u>(word, kCounting<Element>));
}

// The e4m3 in the high bytes of both halves as Elements: exponent and mantissa at their places,
// then the difference of the biases.
template <typename Element>
__device__ __forceinline__ uint32_t WidenE4M3(uint32_t word) {
  if constexpr (std::is_same_v<Element, Half>) {
    const uint32_t bits = ((word >> 1) & 0x3F803F80u) | (word & 0x80008000u);
    return MultiplyPairs<Element>(bits, 0x5C005C00u);  // 2^8
  } else {
    const uint32_t bits = ((word >> 4) & 0x07F007F0u) | (word & 0x80008000u);
    return MultiplyPairs<Element>(bits, 0x7B807B80u);  // 2^120
  }
}

__device__ __forceinline__ float2 HalvesToFloats(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

// Scale and minimum of a group, of channels r and r + 8.
struct GroupScales {
  float scale[2];
  float low[2];
};

// Where a chunk is.
struct InGlobal {
  static __device__ __forceinline__ uint4 Numbers(const std::byte* from) {
    return LoadWeights(from);
  }
  template <typename Scale>
  static __device__ __forceinline__ Scale Scales(const std::byte* from) {
    return __ldg(reinterpret_cast<const Scale*>(from));
  }
};
struct InShared {
  static __device__ __forceinline__ uint4 Numbers(const std::byte* from) {
    return *reinterpret_cast<const uint4*>(from);
  }
  template <typename Scale>
  static __device__ __forceinline__ Scale Scales(const std::byte* from) {
    return *reinterpret_cast<const Scale*>(from);
  }
};

// One struct per PackedType:
//
//   kHasLow  whether groups have minimums
//   kScales  how many scales a channel has
//   Load     from a chunk in memory `Memory`, by a whole warp
//   Widen    eight numbers of group `group` of channel r (half 0) or r + 8 (half 1)
//   Scales   of a group
template <PackedType type>
struct Chunk;

// The numbers of types that take a byte for each.
struct ByteNumbers {
  uint4 of_group[2];

  template <typename Memory>
  __device__ __forceinline__ void Load(const std::byte* chunk) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    of_group[0] = Memory::Numbers(chunk + lane * 16);
    of_group[1] = Memory::Numbers(chunk + 512 + lane * 16);
  }
  __device__ __forceinline__ uint2 Words(int group, int half) const {
    const uint4& all = of_group[group];
    return half == 0 ? uint2{all.x, all.y} : uint2{all.z, all.w};
  }
};

template <>
struct Chunk<PackedType::kInt8> {
  static constexpr bool kHasLow = false;
  static constexpr int kScales = kChunkGroups;
  ByteNumbers numbers;
  uint2 scales;

  template <typename Memory>
  __device__ __forceinline__ void Load(const std::byte* chunk) {
    numbers.Load<Memory>(chunk);
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    scales = Memory::template Scales<uint2>(chunk + ScalesAt(PackedType::kInt8) + lane / 4 * 8);
  }
  template <typename Element>
  __device__ __forceinline__ uint4 Widen(int group, int half) const {
    const uint2 words = numbers.Words(group, half);
    return {WidenInt8<Element>(words.x), WidenInt8<Element>(words.x >> 8),
            WidenInt8<Element>(words.y), WidenInt8<Element>(words.y >> 8)};
  }
  __device__ __forceinline__ GroupScales Scales(int group) const {
    const float2 pair = HalvesToFloats(group == 0 ? scales.x : scales.y);
    return {{pair.x, pair.y}, {}};
  }
};

template <>
struct Chunk<PackedType::kInt4> {
  static constexpr bool kHasLow = true;
  static constexpr int kScales = kChunkGroups;
  uint4 numbers;
  uint4 scales;

  template <typename Memory>
  __device__ __forceinline__ void Load(const std::byte* chunk) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    numbers = Memory::Numbers(chunk + lane * 16);
    scales = Memory::template Scales<uint4>(chunk + ScalesAt(PackedType::kInt4) + lane / 4 * 16);
  }
  template <typename Element>
  __device__ __forceinline__ uint4 Widen(int group, int half) const {
    const uint32_t word =
        group == 0 ? (half == 0 ? numbers.x : numbers.y) : (half == 0 ? numbers.z : numbers.w);
    const auto pair = [&](int i) {
      return SubtractPairs<Element>(MaskOnto<0x000F000Fu>(word >> (4 * i), kCounting<Element>),
                                    kCounting<Element>);
    };
    return {pair(0), pair(1), pair(2), pair(3)};
  }
  __device__ __forceinline__ GroupScales Scales(int group) const {
    const float2 first = HalvesToFloats(group == 0 ? scales.x : scales.z);
    const float2 second = HalvesToFloats(group == 0 ? scales.y : scales.w);
    return {{first.x, second.x}, {first.y, second.y}};
  }
};

template <>
struct Chunk<PackedType::kE4M3> {
  static constexpr bool kHasLow = false;
  static constexpr int kScales = 1;
  ByteNumbers numbers;
  float scale;

  template <typename Memory>
  __device__ __forceinline__ void Load(const std::byte* chunk) {
    numbers.Load<Memory>(chunk);
    scale = Memory::template Scales<float>(chunk + ScalesAt(PackedType::kE4M3));
  }
  template <typename Element>
  __device__ __forceinline__ uint4 Widen(int group, int half) const {
    const uint2 words = numbers.Words(group, half);
    return {WidenE4M3<Element>(words.x << 8), WidenE4M3<Element>(words.x),
            WidenE4M3<Element>(words.y << 8), WidenE4M3<Element>(words.y)};
  }
  __device__ __forceinline__ GroupScales Scales(int /*group*/) const {
    return {{scale, scale}, {}};
  }
};

template <>
struct Chunk<PackedType::kSixteen> {
  static constexpr bool kHasLow = false;
  static constexpr int kScales = 1;
  uint4 numbers[2][2];

  template <typename Memory>
  __device__ __forceinline__ void Load(const std::byte* chunk) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      numbers[i / 2][i % 2] = Memory::Numbers(chunk + i * 512 + lane * 16);
    }
  }
  template <typename Element>
  __device__ __forceinline__ uint4 Widen(int group, int half) const {
    return numbers[group][half];
  }
  __device__ __forceinline__ GroupScales Scales(int /*group*/) const {
    return {{1.0f, 1.0f}, {}};
  }
};

// Of two rows of x: the sums over a group. `x`: the lane's numbers of a column of eight rows, as
// the second factor of a product. A row has the same bits whichever warp adds it up.
template <typename T>
__device__ __forceinline__ float2 SumsOfX(const uint4& x) {
  constexpr uint32_t kAll[4] = {kOnes<T>, kOnes<T>, kOnes<T>, kOnes<T>};
  float sums[4] = {};
  Mma<T>(sums, kAll, x.x, x.y);
  Mma<T>(sums, kAll, x.z, x.w);
  return {sums[0], sums[1]};
}

// Calls visit(constant) with the type as a compile-time constant.
template <typename Visit>
__device__ __forceinline__ void WithPackedType(PackedType type, Visit&& visit) {
  switch (type) {
    case PackedType::kInt8:
      return visit(std::integral_constant<PackedType, PackedType::kInt8>());
    case PackedType::kInt4:
      return visit(std::integral_constant<PackedType, PackedType::kInt4>());
    case PackedType::kE4M3:
      return visit(std::integral_constant<PackedType, PackedType::kE4M3>());
    default:
      return visit(std::integral_constant<PackedType, PackedType::kSixteen>());
  }
}

}  // namespace eta::cuda::packed
