// The work of a CTA of calibration (calibration.cu): a tile of rows of one query head in shared
// memory, and the queries as operands of tensor cores.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/float8.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/prefill/prefill_mma.cuh"
#include "kernels/cuda/prefill/prefill_tile.cuh"

namespace eta::cuda {

inline constexpr int32_t kCalibrationRows = 64;
inline constexpr int32_t kWarpKeys = kTileKeys / 2;
inline constexpr int32_t kBatchTiles = 4;    // tiles of keys whose counts are kept
inline constexpr int32_t kCountedKeys = 16;  // keys that share a byte of the counts

// Dynamic shared memory, in bytes.
template <int kHeadDim>
struct CalibrationShape {
  static constexpr int kKeyBytes = kTileKeys * kHeadDim * 2;  // two stages of keys
  // Stride of a float32 query. It puts the pairs that the lanes of a warp read into different
  // banks.
  static constexpr int kQueryStride = kHeadDim + 2;
  static constexpr int kQueries = 2 * kKeyBytes;
  static constexpr int kThresholds = kQueries + kCalibrationRows * kQueryStride * 4;
  static constexpr int kNorms = kThresholds + kCalibrationRows * 4;
  static constexpr int kAbove = kNorms + kCalibrationRows * 4;
  static constexpr int kAboveBytes = kBatchTiles * kCalibrationRows * 4;
  static constexpr int kSums = kAbove + kAboveBytes;  // weights, [2][cells], low and high words
  static_assert(kAboveBytes >= 2 * kCalibrationRows * static_cast<int>(sizeof(double)));
};

struct CalibrationMemory {
  template <int kHeadDim>
  __device__ __forceinline__ static CalibrationMemory At(std::byte* shared) {
    using Shape = CalibrationShape<kHeadDim>;
    return {reinterpret_cast<float*>(shared + Shape::kQueries),
            reinterpret_cast<float*>(shared + Shape::kThresholds),
            reinterpret_cast<float*>(shared + Shape::kNorms),
            reinterpret_cast<uint32_t*>(shared + Shape::kAbove),
            reinterpret_cast<double*>(shared + Shape::kAbove),
            reinterpret_cast<uint32_t*>(shared + Shape::kSums)};
  }

  float* queries;     // [rows][kQueryStride]
  float* thresholds;  // [rows], tau_eff
  float* norms;       // [rows], |q|
  uint32_t* above;    // [kBatchTiles][rows], keys at or above the threshold, a byte per 16 keys
  double* gates;      // [2][rows], sums of the halves; uses the memory of `above`
  uint32_t* sums;     // [2][cells]
};

// A lane's queries as A operands. Each is a sum of kParts Elements, which gives 22 or 24 bits. Rows
// are scaled by a power of two, so that nothing is lost to small exponents.
template <typename Element, int kHeadDim>
struct CalibrationQueries {
  static constexpr int kParts = std::is_same_v<Element, Half> ? 2 : 3;
  uint32_t parts[kParts][kHeadDim / 16][4];
  float scale[2];  // s, without the scale of the row

  // `queries`: those of row `lane / 4` of the warp, in shared memory.
  __device__ __forceinline__ void Load(const float* queries, float softmax_scale) {
    constexpr int kStride = CalibrationShape<kHeadDim>::kQueryStride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* q = queries + 8 * i * kStride + threadIdx.x % 4 * 2;
      float largest = 0.0f;
#pragma unroll
      for (int k = 0; k < kHeadDim / 8; ++k) {
        const float2 pair = *reinterpret_cast<const float2*>(q + 8 * k);
        largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      // 2^(6 - exponent of the largest element); 1 if there is nothing to scale.
      const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
      const int shift = exponent > -100 && exponent < 100 ? 6 - exponent : 0;
      const float factor = PowerOfTwo(shift);
      scale[i] = softmax_scale * PowerOfTwo(-shift);
#pragma unroll
      for (int k = 0; k < kHeadDim / 8; ++k) {
        float2 rest = *reinterpret_cast<const float2*>(q + 8 * k);
        rest.x *= factor;
        rest.y *= factor;
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          const uint32_t rounded = PackPair<Element>(rest.x, rest.y);
          const float2 kept = UnpackPair<Element>(rounded);
          parts[p][k / 2][k % 2 * 2 + i] = rounded;
          rest.x -= kept.x;
          rest.y -= kept.y;
        }
      }
    }
  }

  // `keys`: the warp's keys in shared memory.
  __device__ __forceinline__ void Multiply(uint32_t keys, float (&scores)[kWarpKeys / 8][4]) const {
    if constexpr (kParts == 2) {
      MultiplyKeys<Element, kHeadDim>(scores, keys, parts[0], parts[1]);
    } else {
      MultiplyKeys<Element, kHeadDim>(scores, keys, parts[0], parts[1], parts[2]);
    }
  }
};

}  // namespace eta::cuda
