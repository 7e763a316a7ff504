// Upper bounds of 16 blocks by one warp on tensor cores, for SelectBlocks.
//
// A product over i may take the i in any order, so each lane loads whole chunks of mu and sigma
// from global memory, where the four lanes of a block read 64 bytes side by side: chunks 4j + t of
// its two blocks r and r + 8, with r = lane / 4 and t = lane % 4. Product k takes the lane's next
// four elements, with the same elements of q. Nothing is shared between lanes, so registers are all
// the room that records on their way need.
//
// float16 keeps 11 bits of a factor, so q, q^2 and sigma^2 are sums of two float16, and the product
// of two low parts is dropped: 22 bits, as good as float32 sums of any order. mu needs one, and of
// an 8-bit record so does sigma^2 / 4: it has 8 bits and lies in 2^-20 .. 50176. q is scaled by a
// power of two, so that its largest element is in [64, 128) and none is lost below.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/screen.cuh"

namespace eta::cuda {

// Elements of a chunk, which is 16 bytes where four lanes' chunks cut D evenly. Index is Half or
// int8_t.
template <int D, typename Index>
inline constexpr int kScreenChunk = sizeof(Index) == 1 && D % 64 == 0 ? 16 : 8;

// The queries of one (row, KV head) as B operands, in registers, for records of chunks of `Chunk`.
template <int D, int HeadTiles, int Chunk>
struct ScreenQueries {
  uint32_t high[HeadTiles][D / 16][2];
  uint32_t low[HeadTiles][D / 16][2];
  uint32_t square_high[HeadTiles][D / 16][2];
  uint32_t square_low[HeadTiles][D / 16][2];
  // Of the lane's heads 2t and 2t + 1 of each tile:
  float scale[HeadTiles][2];      // s, the scale of q undone
  float ceiling[HeadTiles][2];    // s |q|: times M, the other limit of the bound
  float threshold[HeadTiles][2];  // tau - offset; +infinity for heads past the group

  // q: [group, D] and thresholds: [group] of the row and KV head. All lanes call it.
  __device__ void Load(const float* q, const float* thresholds, int32_t group, float softmax_scale,
                       float offset) {
    const int lane = threadIdx.x % 32;
    constexpr uint32_t kAll = 0xffffffffu;
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int head = tile * 8 + lane % 4 * 2 + i;
        threshold[tile][i] = head < group ? thresholds[head] - offset : INFINITY;
      }
      const int column = tile * 8 + lane / 4;  // the head whose elements this lane holds
      float4 parts[D / 16];
      float norm = 0.0f;
      float largest = 0.0f;
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        parts[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (column < group) {
          const int at = (k * 4 / Chunk * 4 + lane % 4) * Chunk + k * 4 % Chunk;
          parts[k] = *reinterpret_cast<const float4*>(q + column * D + at);
        }
      }
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        const float4& v = parts[k];
        norm += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
        largest =
            fmaxf(largest, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
      }
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        norm += __shfl_xor_sync(kAll, norm, step);
        largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, step));
      }
      // 2^(6 - exponent of the largest) and its inverse; 1 where there is nothing to scale.
      const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
      const int shift = exponent > -100 && exponent < 100 ? 6 - exponent : 0;
      const float factor = __uint_as_float(static_cast<uint32_t>(127 + shift) << 23);
      const float inverse = __uint_as_float(static_cast<uint32_t>(127 - shift) << 23);
      const float limit = softmax_scale * sqrtf(norm);
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        const float4 v = make_float4(parts[k].x * factor, parts[k].y * factor, parts[k].z * factor,
                                     parts[k].w * factor);
        Split(v.x, v.y, high[tile][k][0], low[tile][k][0]);
        Split(v.z, v.w, high[tile][k][1], low[tile][k][1]);
        Split(v.x * v.x, v.y * v.y, square_high[tile][k][0], square_low[tile][k][0]);
        Split(v.z * v.z, v.w * v.w, square_high[tile][k][1], square_low[tile][k][1]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int source = (lane % 4 * 2 + i) * 4;
        scale[tile][i] = softmax_scale * __shfl_sync(kAll, inverse, source);
        ceiling[tile][i] = __shfl_sync(kAll, limit, source);
      }
    }
  }

 private:
  __device__ static void Split(float x, float y, uint32_t& top, uint32_t& rest) {
    top = PackPair<Half>(x, y);
    const float2 rounded = UnpackPair<Half>(top);
    rest = PackPair<Half>(x - rounded.x, y - rounded.y);
  }
};

// Loads words that no other lane reads.
template <int Words>
__device__ __forceinline__ void LoadOnce(const std::byte* from, uint32_t* to) {
  if constexpr (Words == 4) {
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from)
                 : "memory");
  } else {
    static_assert(Words == 2);
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "l"(from)
                 : "memory");
  }
}

// What a lane reads of its two blocks.
template <int D, typename Index>
struct ScreenRecords {
  static constexpr bool kNarrow = std::is_same_v<Index, int8_t>;
  using Scalars = std::conditional_t<kNarrow, RecordTrailer, float>;
  static constexpr int kChunkBytes = kScreenChunk<D, Index> * static_cast<int>(sizeof(Index));
  static constexpr int kChunkWords = kChunkBytes / 4;
  static constexpr int kWords = D / 16 * static_cast<int>(sizeof(Index));

  uint32_t mu[2][kWords];
  uint32_t sigma[2][kWords];
  Scalars scalars[2];

  // `records`: of both blocks, of `num_kv_heads` KV heads.
  __device__ __forceinline__ void Read(const std::byte* const (&records)[2], uint32_t kv_head,
                                       uint32_t num_kv_heads) {
    constexpr uint32_t kVector = D * sizeof(Index);
    const uint32_t own = kv_head * (2 * kVector) + threadIdx.x % 4 * kChunkBytes;
    const uint32_t own_scalars =
        num_kv_heads * (2 * kVector) + kv_head * static_cast<uint32_t>(sizeof(Scalars));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::byte* from = records[i] + own;
#pragma unroll
      for (int word = 0; word < kWords; word += kChunkWords) {
        LoadOnce<kChunkWords>(from + word * 16, mu[i] + word);
      }
#pragma unroll
      for (int word = 0; word < kWords; word += kChunkWords) {
        LoadOnce<kChunkWords>(from + kVector + word * 16, sigma[i] + word);
      }
      scalars[i] = *reinterpret_cast<const Scalars*>(records[i] + own_scalars);
    }
  }
};

// A pair of float16 squared, as the sum of two float16.
__device__ __forceinline__ void Square(uint32_t pair, uint32_t& top, uint32_t& rest) {
  const __half2 v = *reinterpret_cast<const __half2*>(&pair);
  const __half2 high = __hmul2_rn(v, v);
  const __half2 low = __hfma2(v, v, __hneg2(high));
  top = *reinterpret_cast<const uint32_t*>(&high);
  rest = *reinterpret_cast<const uint32_t*>(&low);
}

__device__ __forceinline__ float SquareRoot(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// max(x, 0), NaN if x is.
__device__ __forceinline__ float NotBelowZero(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// Four int8 as two pairs of float16, exactly: the float16 of bits 0x6400 + n is 1024 + n.
__device__ __forceinline__ uint2 WidenInt8(uint32_t bytes) {
  const uint32_t biased = bytes ^ 0x80808080u;  // + 128
  const uint32_t low = __byte_perm(biased, 0x64646464u, 0x4140);
  const uint32_t high = __byte_perm(biased, 0x64646464u, 0x4342);
  const __half2 bias = __float2half2_rn(1024.0f + 128.0f);
  const __half2 first = __hsub2(*reinterpret_cast<const __half2*>(&low), bias);
  const __half2 second = __hsub2(*reinterpret_cast<const __half2*>(&high), bias);
  return {*reinterpret_cast<const uint32_t*>(&first), *reinterpret_cast<const uint32_t*>(&second)};
}

// Four e4m3 without sign squared, a quarter of that, as two pairs of float16, exactly.
__device__ __forceinline__ uint2 QuarterSquares(uint32_t bytes) {
  const uint2 wide = WidenE4M3(bytes);  // 2^-8 of the values
  const auto square = [](uint32_t pair) {
    const __half2 v = *reinterpret_cast<const __half2*>(&pair);
    const __half2 result = __hmul2_rn(__hmul2_rn(v, __float2half2_rn(0x1p14f)), v);
    return *reinterpret_cast<const uint32_t*>(&result);
  };
  return {square(wide.x), square(wide.y)};
}

// <q, mu> of the scaled q and sum q_i^2 sigma_i^2 by kinds of products, each of which has a sum of
// its own: a chain of dependent products is what takes long. sums[tile][kind][i] is of the head and
// the block of bounds[tile][i] below.
template <int D, int HeadTiles, typename Index>
struct ScreenSums {
  static constexpr bool kNarrow = std::is_same_v<Index, int8_t>;
  float q_mu[HeadTiles][2][4] = {};
  float variance[HeadTiles][kNarrow ? 2 : 3][4] = {};

  __device__ __forceinline__ void Add(
      const ScreenRecords<D, Index>& records,
      const ScreenQueries<D, HeadTiles, kScreenChunk<D, Index>>& q) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t mu[4];
      uint32_t top[4];
      uint32_t rest[4];
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        if constexpr (kNarrow) {
          const uint2 wide = WidenInt8(records.mu[block][k]);
          const uint2 squares = QuarterSquares(records.sigma[block][k]);
          mu[block] = wide.x;
          mu[block + 2] = wide.y;
          top[block] = squares.x;
          top[block + 2] = squares.y;
        } else {
#pragma unroll
          for (int pair = 0; pair < 2; ++pair) {
            const int a = block + 2 * pair;
            mu[a] = records.mu[block][2 * k + pair];
            Square(records.sigma[block][2 * k + pair], top[a], rest[a]);
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

  // bounds[tile][i]: of head tile * 8 + 2t + i % 2 and block r + 8 * (i / 2).
  __device__ __forceinline__ void Bounds(
      const typename ScreenRecords<D, Index>::Scalars (&scalars)[2],
      const ScreenQueries<D, HeadTiles, kScreenChunk<D, Index>>& queries, float z,
      float (&bounds)[HeadTiles][4]) const {
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float product = q_mu[tile][0][i] + q_mu[tile][1][i];
        const float scale = queries.scale[tile][i % 2];
        const float ceiling = queries.ceiling[tile][i % 2];
        // Low parts are signed, so a variance of almost nothing may come out just below zero; one
        // that float16 cannot hold comes out as NaN, and the norms alone are the limit then.
        float estimate;
        float max_norm;
        if constexpr (kNarrow) {
          const RecordTrailer& record = scalars[i / 2];
          const float quarter = variance[tile][0][i] + variance[tile][1][i];
          const float deviation = 2.0f * record.sigma_scale * SquareRoot(NotBelowZero(quarter));
          estimate =
              scale * (record.mu_scale * product + z * deviation) + ceiling * record.mu_error;
          max_norm = record.max_norm;
        } else {
          const float squares =
              variance[tile][0][i] + (variance[tile][1][i] + variance[tile][2][i]);
          estimate = scale * (product + z * SquareRoot(NotBelowZero(squares)));
          max_norm = scalars[i / 2];
        }
        bounds[tile][i] = fminf(estimate, ceiling * max_norm);
      }
    }
  }
};

}  // namespace eta::cuda
