// Packed weights as numbers: unit * (scale * q - minimum), each product and the difference rounded
// to float32.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/packed/packed_chunk.cuh"

namespace eta::cuda::packed {

// Of channels r and r + 8 of a tile.
struct LaneUnits {
  float of[2];
};

// `units`: of the part's tiles, the first of which is tile 0.
__device__ __forceinline__ LaneUnits UnitsOf(const float* units, int32_t tile) {
  const float* of_lane = units + int64_t{tile} * kTileChannels + threadIdx.x % 32 / 4;
  return {{of_lane[0], of_lane[8]}};
}

// Calls visit(half, k, numbers) with the lane's eight numbers from `k` of the chunk on, of channel
// r + 8 * half.
template <typename Element, typename Loaded, typename Visit>
__device__ __forceinline__ void ForNumbers(const Loaded& chunk, const LaneUnits& units,
                                           Visit&& visit) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
  for (int group = 0; group < kChunkGroups; ++group) {
    const GroupScales scales = chunk.Scales(group);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 wide = chunk.template Widen<Element>(group, half);
      const uint32_t words[4] = {wide.x, wide.y, wide.z, wide.w};
      float numbers[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = UnpackPair<Element>(words[i]);
        numbers[2 * i] = pair.x;
        numbers[2 * i + 1] = pair.y;
      }
#pragma unroll
      for (float& number : numbers) {
        number = __fmul_rn(scales.scale[half], number);
        if constexpr (Loaded::kHasLow) number = __fsub_rn(number, scales.low[half]);
        number = __fmul_rn(units.of[half], number);
      }
      visit(half, group * 32 + lane % 4 * 8, numbers);
    }
  }
}

// The number of channel `channel` at `k` of tiles of `chunks` chunks each, without its unit: byte
// by byte as packed_layout.h has it, for plain kernels.
__device__ __forceinline__ float NumberAt(const std::byte* tiles, PackedType type, int32_t chunks,
                                          int32_t channel, int32_t k) {
  const std::byte* chunk =
      tiles + (int64_t{channel / kTileChannels} * chunks + k / kChunk) * ChunkBytes(type);
  const int32_t r = channel % 8;
  const int32_t half = channel / 8 % 2;
  const int32_t group = k % kChunk / 32;
  const int32_t i = k % 8;
  const int32_t lane = r * 4 + k % 32 / 8;
  const std::byte* scales = chunk + ScalesAt(type);
  const auto half_at = [&](int32_t at) {
    return __half2float(*reinterpret_cast<const __half*>(scales + at));
  };
  if (type == PackedType::kInt4) {
    const auto word = *reinterpret_cast<const uint32_t*>(chunk + lane * 16 + group * 8 + half * 4);
    const auto q = static_cast<float>(word >> (i / 2 * 4 + i % 2 * 16) & 15u);
    const int32_t at = r * 16 + group * 8 + half * 4;
    return __fsub_rn(__fmul_rn(half_at(at), q), half_at(at + 2));
  }
  const int32_t place = i % 4 == 1 || i % 4 == 2 ? i ^ 3 : i;  // the two in the middle
  const auto byte = static_cast<uint32_t>(chunk[group * 512 + lane * 16 + half * 8 + place]);
  if (type == PackedType::kInt8) {
    return half_at(r * 8 + group * 4 + half * 2) * static_cast<float>(static_cast<int8_t>(byte));
  }
  // Sign, exponent and mantissa at their places, then the difference of the biases.
  const float e4m3 = __uint_as_float((byte & 0x80u) << 24 | (byte & 0x7Fu) << 20) * 0x1p120f;
  return *reinterpret_cast<const float*>(scales) * e4m3;
}

}  // namespace eta::cuda::packed
