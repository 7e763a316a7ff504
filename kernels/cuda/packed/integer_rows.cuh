// Rows of x as integers, for products of one or two rows with weights that are integers themselves.
//
// A group of 32 numbers shares a power of two, so that its largest has 22 bits: x = s (65536 d2 +
// 256 d1 + d0) with digits of a byte, rounded to the nearest. A tensor core multiplies bytes with
// eight columns, and a row of x is three of them, so weights go into products as they are stored.
// Numbers of 16 bits are exact unless they are 2^11 times smaller than their group's largest.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/packed/packed_layout.h"
#include "kernels/cuda/packed/packed_product.h"
#include "kernels/cuda/rows/row_norm.cuh"

namespace eta::cuda::packed {

inline constexpr int kIntegerWarps = 16;
inline constexpr int kIntegerThreads = 32 * kIntegerWarps;
inline constexpr int kDigits = 3;
// Of four lanes that share channels, two have a row's sums: of the upper two digits, and of the
// lowest.
inline constexpr int kColumnsOfRow = 4;

// Rows of x in shared memory: of each row the digits, a plane for each, then of each group what its
// digits are multiplied with and its sum.
class IntegerRows {
 public:
  static __host__ __device__ size_t Bytes(int32_t rows, int32_t chunks) {
    return static_cast<size_t>(rows) * (kDigits * Stride(chunks) + ScaleBytes(chunks));
  }
  __device__ IntegerRows(const product::Args& args, int32_t chunks, std::byte* memory)
      : args_(args),
        chunks_(chunks),
        digits_(memory),
        scales_(reinterpret_cast<float2*>(memory + args.rows * kDigits * Stride(chunks))) {}

  // Brings the rows, normalised if there is a norm. Ends with a barrier of the thread block.
  template <typename T>
  __device__ __forceinline__ void Fill() const {
    __shared__ float squares[kMostIntegerRows][product::kWarps];
    const bool norms = args_.norm_weight != nullptr;
    if (norms) {
      if (threadIdx.x < product::kThreads) AddSquares(squares);
      __syncthreads();
    }
    for (int32_t row = 0; row < args_.rows; ++row) {
      float sum = 0.0f;
      if (norms) {
#pragma unroll
        for (const float of_warp : squares[row]) sum += of_warp;
      }
      FillRow<T>(row, norms ? product::NormScale(args_, sum) : 1.0f);
    }
    __syncthreads();
  }

  // The lane's part of the second factor of a group's products, in the order of a word of int4
  // (packed_layout.h): numbers 0, 4, 1, 5, then 2, 6, 3, 7 of the eight from 8 (lane % 4) on.
  __device__ __forceinline__ uint2 Factor(int32_t chunk, int group) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t column = lane / 4;
    const int32_t row = column / kColumnsOfRow;
    const int32_t digit = column % kColumnsOfRow;  // the third column of a row is zero
    if (row >= args_.rows || digit == 2) return {};
    const int32_t plane = row * kDigits + min(digit, kDigits - 1);
    return *reinterpret_cast<const uint2*>(digits_ + plane * Stride(chunks_) + chunk * kChunk +
                                           group * 32 + lane % 4 * 8);
  }
  // Of the lane's row and both groups of a chunk: what its integers are multiplied with, and the
  // sum of x, which one lane of a row has.
  __device__ __forceinline__ float4 Scales(int32_t chunk) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t row = min(lane % 4 / 2, args_.rows - 1);
    float4 of = *reinterpret_cast<const float4*>(scales_ + (row * chunks_ + chunk) * kChunkGroups);
    if (lane % 2 == 0) {
      of.x *= 256.0f;
      of.z *= 256.0f;
    } else {
      of.y = of.w = 0.0f;
    }
    return of;
  }

 private:
  // Of a plane of digits. Planes begin in different banks.
  static __host__ __device__ int32_t Stride(int32_t chunks) {
    return (chunks * kChunk + 127) / 128 * 128 + 32;
  }
  static __host__ __device__ size_t ScaleBytes(int32_t chunks) {
    return static_cast<size_t>(chunks) * kChunkGroups * sizeof(float2);
  }

  // As NormaliseRows adds them (row_norm.cuh), so that a row has the same bits.
  __device__ __forceinline__ void AddSquares(
      float (&squares)[kMostIntegerRows][product::kWarps]) const {
    for (int32_t row = 0; row < args_.rows; ++row) {
      const float* from = product::NormSource(args_, row);
      float sum = 0.0f;
      for (auto i = static_cast<int32_t>(threadIdx.x) * product::kWidth; i < args_.k;
           i += product::kPass) {
        float values[product::kWidth];
        LoadElements(from + i, values);
        product::AddSquares(values, sum);
      }
      sum = product::SumOfLanes(sum);
      if (threadIdx.x % 32 == 0) squares[row][threadIdx.x / 32] = sum;
    }
  }

  // A thread has eight numbers at a time, four neighbours a group.
  template <typename T>
  __device__ __forceinline__ void FillRow(int32_t row, float norm_scale) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const auto warp = static_cast<int32_t>(threadIdx.x / 32);
    const int32_t units = chunks_ * (kChunk / 8);
    for (int32_t first = warp * 32; first < units; first += kIntegerThreads) {
      const int32_t unit = first + lane;
      float values[8] = {};
      if (unit * 8 < args_.k) LoadUnit<T>(row, unit * 8, norm_scale, values);
      FillUnit(row, unit, unit < units, values);
    }
  }

  template <typename T>
  __device__ __forceinline__ void LoadUnit(int32_t row, int32_t k, float norm_scale,
                                           float (&values)[8]) const {
    T* x = reinterpret_cast<T*>(const_cast<std::byte*>(args_.x)) + row * args_.x_stride + k;
    if (args_.norm_weight == nullptr) {
      LoadElements(x, values);
      return;
    }
    float factors[8];
    LoadElements(args_.norm_weight + k, factors);
    LoadElements(product::NormSource(args_, row) + k, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] = ToFloat(FromFloat<T>(values[i] * norm_scale * factors[i]));
    }
    if (row % gridDim.x == blockIdx.x) StoreElements(values, x);
  }

  __device__ __forceinline__ void FillUnit(int32_t row, int32_t unit, bool exists,
                                           const float (&values)[8]) const {
    // Bits of magnitudes are in the order of magnitudes, and NaN is above infinity.
    uint32_t most = 0;
#pragma unroll
    for (const float value : values) most = max(most, __float_as_uint(value) & 0x7FFFFFFFu);
    most = max(most, __shfl_xor_sync(~0u, most, 1));
    most = max(most, __shfl_xor_sync(~0u, most, 2));
    constexpr int32_t kBits = 22;
    constexpr int32_t kBias = 127;
    constexpr int32_t kInfinite = 255;
    const auto exponent = static_cast<int32_t>(most >> 23);
    const int32_t shift = kBits - 1 - (max(exponent, kBias - 100) - kBias);
    const float up = __uint_as_float(static_cast<uint32_t>(kBias + shift) << 23);
    const float down = exponent == kInfinite
                           ? __uint_as_float(0x7FFFFFFFu)
                           : __uint_as_float(static_cast<uint32_t>(kBias - shift) << 23);
    // Numbers in the order 0, 4, 1, 5, 2, 6, 3, 7.
    constexpr int kPlaces[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    uint32_t digits[kDigits][2] = {};
    int32_t sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int32_t number = __float2int_rn(values[i] * up);
      sum += number;
      const int32_t lowest = ((number + 128) & 255) - 128;
      const int32_t rest = (number - lowest) / 256;
      const int32_t middle = ((rest + 128) & 255) - 128;
      const int32_t parts[kDigits] = {(rest - middle) / 256, middle, lowest};
      const int place = kPlaces[i];
#pragma unroll
      for (int digit = 0; digit < kDigits; ++digit) {
        digits[digit][place / 4] |= (static_cast<uint32_t>(parts[digit]) & 255u) << (place % 4 * 8);
      }
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (!exists) return;
#pragma unroll
    for (int digit = 0; digit < kDigits; ++digit) {
      *reinterpret_cast<uint2*>(digits_ + (row * kDigits + digit) * Stride(chunks_) + unit * 8) = {
          digits[digit][0], digits[digit][1]};
    }
    if (unit % 4 != 0) return;
    scales_[row * chunks_ * kChunkGroups + unit / 4] = {down, down * static_cast<float>(sum)};
  }

  const product::Args& args_;
  int32_t chunks_;
  std::byte* digits_;
  float2* scales_;
};

}  // namespace eta::cuda::packed
