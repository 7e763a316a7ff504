// Upper bounds of 16 blocks by one warp on tensor cores, for SelectBlocks.
//
// A product over i may take the i in any order, so each lane loads whole chunks of 8 elements of mu
// and sigma. With r = lane / 4 and t = lane % 4 these are chunks 4j + t of its two blocks r and r +
// 8. Product (j, half) multiplies four elements of the chunk with the same elements of q.
//
// float16 keeps 11 bits of a factor. So q, q^2 and sigma^2 are sums of two float16, and the product
// of two low parts is dropped: 22 bits, as good as float32 sums of any order. mu needs one float16.
// With an 8-bit record of kind moment sigma^2 / 4 needs one too, since it has 8 bits and lies in
// 2^-20 .. 50176. q is scaled by a power of two, so that its largest element is in [64, 128) and no
// element becomes too small.
//
// This file has what both kinds of record share, and kind moment. screen_outlier.cuh has the other.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/fast_math.cuh"
#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/select/screen.cuh"

namespace eta::cuda {

// The scale of a query: 2^(6 - exponent of its largest element) and the inverse; 1 if there is
// nothing to scale.
struct PowerScale {
  __device__ __forceinline__ explicit PowerScale(float largest) {
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    const int shift = exponent > -100 && exponent < 100 ? 6 - exponent : 0;
    factor = __uint_as_float(static_cast<uint32_t>(127 + shift) << 23);
    inverse = __uint_as_float(static_cast<uint32_t>(127 - shift) << 23);
  }
  float factor;
  float inverse;
};

// A pair of numbers as the sum of two pairs of float16.
__device__ __forceinline__ void SplitPair(float x, float y, uint32_t& top, uint32_t& rest) {
  top = PackPair<Half>(x, y);
  const float2 rounded = UnpackPair<Half>(top);
  rest = PackPair<Half>(x - rounded.x, y - rounded.y);
}

// The queries of one (row, KV head) as B operands in registers.
template <int D, int HeadTiles>
struct ScreenQueries {
  uint32_t high[HeadTiles][D / 16][2];
  uint32_t low[HeadTiles][D / 16][2];
  uint32_t square_high[HeadTiles][D / 16][2];
  uint32_t square_low[HeadTiles][D / 16][2];
  // Per tile, for the lane's heads 2t and 2t + 1:
  float scale[HeadTiles][2];      // s, without the scale of q
  float ceiling[HeadTiles][2];    // s |q|: times M it is the bound's ceiling
  float half_size[HeadTiles][2];  // s |q|_1 / 2: times a step it is what rounding lost at most
  float centre[HeadTiles][2];     // s <q, k_0>
  float threshold[HeadTiles][2];  // tau - offset; +infinity for heads past the group
  float z[HeadTiles][2];

  // Loads q [group, D], thresholds [group], head_z [group] or null (HeadZ) and the mean key [D] or
  // null of the row and KV head. All lanes call it.
  __device__ void Load(const float* q, const float* thresholds, const float* head_z,
                       const float* mean_key, int32_t group, float softmax_scale,
                       const AttentionOptions& options) {
    LoadColumns(
        [&](int column) { return column < group ? q + column * D : nullptr; },
        [&](int head) { return head < group ? thresholds[head] - options.offset : INFINITY; },
        [&](int head) { return head_z != nullptr && head < group ? head_z[head] : options.z; },
        mean_key, softmax_scale);
  }

  // Loads any queries of one KV head: query_of(column) is q [D] or null, threshold_of(column) what
  // it compares with, z_of(column) its z.
  template <typename QueryOf, typename ThresholdOf, typename ZOf>
  __device__ __forceinline__ void LoadColumns(const QueryOf& query_of,
                                              const ThresholdOf& threshold_of, const ZOf& z_of,
                                              const float* mean_key, float softmax_scale) {
    const int lane = threadIdx.x % 32;
    constexpr uint32_t kAll = 0xffffffffu;
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int head = tile * 8 + lane % 4 * 2 + i;
        threshold[tile][i] = threshold_of(head);
        z[tile][i] = z_of(head);
      }
      // The head whose elements this lane holds.
      const float* q = query_of(tile * 8 + lane / 4);
      float4 parts[D / 16];
      float norm = 0.0f;
      float largest = 0.0f;
      float size = 0.0f;
      float along = 0.0f;  // <q, k_0>
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        const int first = lane % 4 * 8 + k / 2 * 32 + k % 2 * 4;
        parts[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (q != nullptr) parts[k] = *reinterpret_cast<const float4*>(q + first);
        if (mean_key != nullptr) {
          const float4 k0 = *reinterpret_cast<const float4*>(mean_key + first);
          const float4& v = parts[k];
          along += (v.x * k0.x + v.y * k0.y) + (v.z * k0.z + v.w * k0.w);
        }
      }
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        const float4& v = parts[k];
        norm += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
        largest =
            fmaxf(largest, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
        size += (fabsf(v.x) + fabsf(v.y)) + (fabsf(v.z) + fabsf(v.w));
      }
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        norm += __shfl_xor_sync(kAll, norm, step);
        largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, step));
        size += __shfl_xor_sync(kAll, size, step);
        along += __shfl_xor_sync(kAll, along, step);
      }
      const PowerScale power(largest);
      const float factor = power.factor;
      const float limit = softmax_scale * sqrtf(norm);
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        const float4 v = make_float4(parts[k].x * factor, parts[k].y * factor, parts[k].z * factor,
                                     parts[k].w * factor);
        SplitPair(v.x, v.y, high[tile][k][0], low[tile][k][0]);
        SplitPair(v.z, v.w, high[tile][k][1], low[tile][k][1]);
        SplitPair(v.x * v.x, v.y * v.y, square_high[tile][k][0], square_low[tile][k][0]);
        SplitPair(v.z * v.z, v.w * v.w, square_high[tile][k][1], square_low[tile][k][1]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int source = (lane % 4 * 2 + i) * 4;
        scale[tile][i] = softmax_scale * __shfl_sync(kAll, power.inverse, source);
        ceiling[tile][i] = __shfl_sync(kAll, limit, source);
        half_size[tile][i] = 0.5f * softmax_scale * __shfl_sync(kAll, size, source);
        centre[tile][i] = softmax_scale * __shfl_sync(kAll, along, source);
      }
    }
  }
};

// Registers hold the records of heads of 256 a slice of coordinates at a time.
template <int D>
inline constexpr bool kInSlices = D == kWideHeadDim;

// The vectors of a lane's two blocks, a slice of them at a time. Index is Half or int8_t, or
// OutlierIndex.
template <int D, typename Index>
struct RecordVectors {
  static constexpr bool kNarrow = std::is_same_v<Index, int8_t>;
  using Chunk = std::conditional_t<kNarrow, uint2, uint4>;
  using Scalars = std::conditional_t<kNarrow, RecordTrailer, float>;
  static constexpr int kChunks = kInSlices<D> ? D / 128 : D / 32;  // of a slice

  Chunk mu[2][kChunks];
  Chunk sigma[2][kChunks];

  // `from`: of the lane, in block r + 8 i.
  __device__ __forceinline__ void ReadOf(int i, const std::byte* from, int slice) {
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      const int chunk = slice * kChunks + j;
      mu[i][j] = *reinterpret_cast<const Chunk*>(from + chunk * 4 * sizeof(Chunk));
      sigma[i][j] = *reinterpret_cast<const Chunk*>(from + (D / 32 + chunk) * 4 * sizeof(Chunk));
    }
  }
};

// The elements that a lane reads of its two blocks.
template <int D, typename Index>
struct ScreenRecords : RecordVectors<D, Index> {
  using Vectors = RecordVectors<D, Index>;
  using Scalars = typename Vectors::Scalars;

  Scalars scalars[2];
  const std::byte* own;  // in slices: of the lane, in block r
  uint32_t eight;        // likewise: bytes from block r to block r + 8

  // Reads the scalars and the first slice. `record`: mu of block r and the KV head. `of_head`: the
  // scalars of the same. Block r + 8 follows `to_eighth` bytes later.
  __device__ __forceinline__ void Read(const std::byte* record, const std::byte* of_head,
                                       uint32_t to_eighth) {
    const std::byte* first = record + threadIdx.x % 4 * sizeof(typename Vectors::Chunk);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Vectors::ReadOf(i, first + i * to_eighth, 0);
      scalars[i] = *reinterpret_cast<const Scalars*>(of_head + i * to_eighth);
    }
    if constexpr (kInSlices<D>) {
      own = first;
      eight = to_eighth;
    }
  }
  __device__ __forceinline__ void ReadSlice(int slice) {
    Vectors::ReadOf(0, own, slice);
    Vectors::ReadOf(1, own + eight, slice);
  }
};

// Squares a pair of float16, as the sum of two float16.
__device__ __forceinline__ void Square(uint32_t pair, uint32_t& top, uint32_t& rest) {
  const __half2 v = *reinterpret_cast<const __half2*>(&pair);
  const __half2 high = __hmul2_rn(v, v);
  const __half2 low = __hfma2(v, v, __hneg2(high));
  top = *reinterpret_cast<const uint32_t*>(&high);
  rest = *reinterpret_cast<const uint32_t*>(&low);
}

__device__ __forceinline__ uint32_t Word(const uint4& v, int p) {
  return p == 0 ? v.x : p == 1 ? v.y : p == 2 ? v.z : v.w;
}

// Widens four uint8, less `bias`, to two pairs of float16. This is exact: the float16 of bits
// 0x6400 + n is 1024 + n.
__device__ __forceinline__ uint2 WidenUint8(uint32_t bytes, float bias = 0.0f) {
  const uint32_t low = __byte_perm(bytes, 0x64646464u, 0x4140);
  const uint32_t high = __byte_perm(bytes, 0x64646464u, 0x4342);
  const __half2 less = __float2half2_rn(1024.0f + bias);
  const __half2 first = __hsub2(*reinterpret_cast<const __half2*>(&low), less);
  const __half2 second = __hsub2(*reinterpret_cast<const __half2*>(&high), less);
  return {*reinterpret_cast<const uint32_t*>(&first), *reinterpret_cast<const uint32_t*>(&second)};
}
// Widens four int8.
__device__ __forceinline__ uint2 WidenInt8(uint32_t bytes) {
  return WidenUint8(bytes ^ 0x80808080u, 128.0f);
}

// A quarter of the squares of four e4m3 without sign, as two pairs of float16. This is exact.
__device__ __forceinline__ uint2 QuarterSquares(uint32_t bytes) {
  const uint2 wide = WidenE4M3(bytes);  // 2^-8 of the values
  const auto square = [](uint32_t pair) {
    const __half2 v = *reinterpret_cast<const __half2*>(&pair);
    const __half2 result = __hmul2_rn(__hmul2_rn(v, __float2half2_rn(0x1p14f)), v);
    return *reinterpret_cast<const uint32_t*>(&result);
  };
  return {square(wide.x), square(wide.y)};
}

// <q, mu> with the scaled q, and sum q_i^2 sigma_i^2. Each kind of product has a sum of its own,
// since a chain of dependent products takes long. sums[tile][kind][i] belongs to the head and the
// block of bounds[tile][i] below.
template <int D, int HeadTiles, typename Index>
struct ScreenSums {
  static constexpr bool kNarrow = std::is_same_v<Index, int8_t>;
  float q_mu[HeadTiles][2][4] = {};
  float variance[HeadTiles][kNarrow ? 2 : 3][4] = {};

  __device__ __forceinline__ void Add(ScreenRecords<D, Index>& records,
                                      const ScreenQueries<D, HeadTiles>& q) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      constexpr int kChunks = ScreenRecords<D, Index>::kChunks;
      if (k > 0 && k % (2 * kChunks) == 0) records.ReadSlice(k / 2 / kChunks);
      const int j = k / 2 % kChunks;
      const int half = k % 2;
      uint32_t mu[4];
      uint32_t top[4];
      uint32_t rest[4];
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        if constexpr (kNarrow) {
          const uint2& means = records.mu[block][j];
          const uint2& deviations = records.sigma[block][j];
          const uint2 wide = WidenInt8(half == 0 ? means.x : means.y);
          const uint2 squares = QuarterSquares(half == 0 ? deviations.x : deviations.y);
          mu[block] = wide.x;
          mu[block + 2] = wide.y;
          top[block] = squares.x;
          top[block + 2] = squares.y;
        } else {
#pragma unroll
          for (int pair = 0; pair < 2; ++pair) {
            const int a = block + 2 * pair;
            mu[a] = Word(records.mu[block][j], 2 * half + pair);
            Square(Word(records.sigma[block][j], 2 * half + pair), top[a], rest[a]);
          }
        }
      }
#pragma unroll
      for (int tile = 0; tile < HeadTiles; ++tile) {
        Mma<Half>(q_mu[tile][0], mu, q.high[tile][k][0], q.high[tile][k][1]);
        Mma<Half>(q_mu[tile][1], mu, q.low[tile][k][0], q.low[tile][k][1]);
        Mma<Half>(variance[tile][0], top, q.square_high[tile][k][0], q.square_high[tile][k][1]);
        Mma<Half>(variance[tile][1], top, q.square_low[tile][k][0], q.square_low[tile][k][1]);
        if constexpr (!kNarrow) {
          Mma<Half>(variance[tile][2], rest, q.square_high[tile][k][0], q.square_high[tile][k][1]);
        }
      }
    }
  }
};

// bounds[tile][i] is for head tile * 8 + 2t + i % 2 and block r + 8 * (i / 2). Leaves the last
// slice in `records`.
template <int D, int HeadTiles, typename Index>
__device__ __forceinline__ void UpperBounds(ScreenRecords<D, Index>& records,
                                            const ScreenQueries<D, HeadTiles>& queries,
                                            float (&bounds)[HeadTiles][4]) {
  ScreenSums<D, HeadTiles, Index> sums;
  sums.Add(records, queries);
#pragma unroll
  for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float product = sums.q_mu[tile][0][i] + sums.q_mu[tile][1][i];
      const float scale = queries.scale[tile][i % 2];
      const float ceiling = queries.ceiling[tile][i % 2];
      const float z = queries.z[tile][i % 2];
      // Low parts are signed, so a variance near 0 may come out just below zero. A variance that
      // float16 cannot hold comes out as NaN; then only the norms bound the score.
      float estimate;
      float max_norm;
      if constexpr (sums.kNarrow) {
        const RecordTrailer& record = records.scalars[i / 2];
        const float quarter = sums.variance[tile][0][i] + sums.variance[tile][1][i];
        const float deviation = 2.0f * record.sigma_scale * SquareRoot(NotBelowZero(quarter));
        estimate = scale * (record.mu_scale * product + z * deviation) + ceiling * record.mu_error;
        max_norm = record.max_norm;
      } else {
        const float squares =
            sums.variance[tile][0][i] + (sums.variance[tile][1][i] + sums.variance[tile][2][i]);
        estimate = scale * (product + z * SquareRoot(NotBelowZero(squares)));
        max_norm = records.scalars[i / 2];
      }
      bounds[tile][i] = fminf(estimate, ceiling * max_norm);
    }
  }
}

}  // namespace eta::cuda
