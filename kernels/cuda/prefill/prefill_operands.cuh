// The operands and the output of prefill attention. Queries and weights are A operands, rounded to
// the cache's type with or without the remainders. Without the queries' remainders the error
// reaches 4e-2 of the output at large scores; without the weights' remainders it reaches 3e-3 in
// bfloat16.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/prefill/gated_softmax.cuh"
#include "kernels/cuda/prefill/prefill_tile.cuh"

namespace eta::cuda {

// A lane's queries as A operands: high[k] covers dimensions 16 * k .. + 15, and low[k] what
// rounding to Element lost. `query` as in QueryPair::Load.
template <typename Element, int kHeadDim>
__device__ __forceinline__ void LoadQueries(const PrefillParams& params, const PrefillTile& tile,
                                            int32_t kv_head, int32_t query,
                                            uint32_t (&high)[kHeadDim / 16][4],
                                            uint32_t (&low)[kHeadDim / 16][4]) {
  const float factor = QueryFactor(params);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t token = (query + 8 * i) / params.group;
    const int32_t head = kv_head * params.group + (query + 8 * i) % params.group;
    const float* q = params.q + (tile.row_begin + token) * params.q_stride +
                     static_cast<int64_t>(head) * kHeadDim + 2 * (threadIdx.x % 4);
    const bool valid = token < tile.tokens;
#pragma unroll
    for (int k = 0; k < kHeadDim / 8; ++k) {
      float2 pair = make_float2(0.0f, 0.0f);
      if (valid) pair = *reinterpret_cast<const float2*>(q + 8 * k);
      pair.x *= factor;
      pair.y *= factor;
      const uint32_t rounded = PackPair<Element>(pair.x, pair.y);
      high[k / 2][k % 2 * 2 + i] = rounded;
      const float2 kept = UnpackPair<Element>(rounded);
      low[k / 2][k % 2 * 2 + i] = PackPair<Element>(pair.x - kept.x, pair.y - kept.y);
    }
  }
}

// Packs weights as the A operands of the product with 64 values: packed[k] covers keys 16 * k .. +
// 15.
template <typename Element>
__device__ __forceinline__ void PackWeights(const float (&weights)[8][4],
                                            uint32_t (&packed)[4][4]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    packed[n / 2][n % 2 * 2] = PackPair<Element>(weights[n][0], weights[n][1]);
    packed[n / 2][n % 2 * 2 + 1] = PackPair<Element>(weights[n][2], weights[n][3]);
  }
}

// Packs what PackWeights lost by rounding, in the same arrangement.
template <typename Element>
__device__ __forceinline__ void PackRemainders(const float (&weights)[8][4],
                                               const uint32_t (&packed)[4][4],
                                               uint32_t (&remainders)[4][4]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 kept = UnpackPair<Element>(packed[n / 2][n % 2 * 2 + i]);
      remainders[n / 2][n % 2 * 2 + i] =
          PackPair<Element>(weights[n][2 * i] - kept.x, weights[n][2 * i + 1] - kept.y);
    }
  }
}

// Finishes 16 queries. `sums` are the weighted values, [n][e] like scores but with dimensions for
// keys. Writes the output, or the part's results if the keys were cut into parts. kFloors: the tile
// is one of sparse prefill.
template <int kHeadDim, bool kFloors>
__device__ __forceinline__ void StoreQueries(const PrefillParams& params, const PrefillTile& tile,
                                             const PrefillWork& work, int32_t query,
                                             const QueryPair& queries,
                                             const float (&sums)[kHeadDim / 8][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float weight = queries.weight[i];
    weight += __shfl_xor_sync(~0u, weight, 1);
    weight += __shfl_xor_sync(~0u, weight, 2);
    const int32_t token = (query + 8 * i) / params.group;
    if (token >= tile.tokens) continue;
    const int32_t column = 2 * (threadIdx.x % 4);
    if (tile.parts > 1) {
      const Part part(params, work.tile, work.kv_head, work.part);
      float* to = part.sums + (query + 8 * i) * kHeadDim + column;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        *reinterpret_cast<float2*>(to + 8 * n) = make_float2(sums[n][2 * i], sums[n][2 * i + 1]);
      }
      if (threadIdx.x % 4 == 0) {
        part.maxima[query + 8 * i] = queries.maximum[i];
        part.weights[query + 8 * i] = weight;
      }
    } else {
      const int32_t head = work.kv_head * params.group + (query + 8 * i) % params.group;
      weight += SinkWeight(params, head, queries.maximum[i]);
      const int64_t at = (tile.row_begin + token) * params.out_stride +
                         static_cast<int64_t>(head) * kHeadDim + column;
      if constexpr (kFloors) {
        if ((queries.floored >> i & 1) != 0) {
          const FloorOfRow floor(params, tile.row_begin + token, work.kv_head);
          const float share = Exp2(kWeightShift - queries.maximum[i]);
          const float inverse = 1.0f / (weight + share * floor.keys);
#pragma unroll
          for (int n = 0; n < kHeadDim / 8; ++n) {
            const float2 values = *reinterpret_cast<const float2*>(floor.values + column + 8 * n);
            StorePair(params.out, params.out_dtype, at + 8 * n,
                      (sums[n][2 * i] + share * values.x) * inverse,
                      (sums[n][2 * i + 1] + share * values.y) * inverse);
          }
          continue;
        }
      }
      // A row without any key gets zeros.
      const float inverse = kFloors && weight == 0.0f ? 0.0f : 1.0f / weight;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        StorePair(params.out, params.out_dtype, at + 8 * n, sums[n][2 * i] * inverse,
                  sums[n][2 * i + 1] * inverse);
      }
    }
  }
}

}  // namespace eta::cuda
