// Products of the queries that share a KV head with one key or one record, for any geometry,
// without tensor cores.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/calibration_cells.h"
#include "kernels/cuda/device/kv_elements.cuh"
#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/select/screen.cuh"

namespace eta::cuda {

inline constexpr int kHeadsAtOnce = 4;

// Computes <q, k> of heads first .. first + 3. queries: [G up to a multiple of 4, d].
template <typename T>
__device__ __forceinline__ void MultiplyKey(const KvTile& tile, const std::byte* key_tile,
                                            int32_t token, const float* queries,
                                            float (&products)[kHeadsAtOnce]) {
  float sums[kHeadsAtOnce][4] = {};
  for (int32_t i = 0; i < tile.head_dim; i += 4) {
    float k[4];
    LoadKeyElements<T>(tile, key_tile, token, i, k);
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sums[h][j] = fmaf(queries[h * tile.head_dim + i + j], k[j], sums[h][j]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kHeadsAtOnce; ++h) {
    products[h] = (sums[h][0] + sums[h][1]) + (sums[h][2] + sums[h][3]);
  }
}

// Sums two values over the warp. The lower half of the lanes gets one sum, the upper half the
// other.
__device__ __forceinline__ float SumHalves(float lower, float upper) {
  const bool is_upper = (threadIdx.x & 16) != 0;
  float sum = is_upper ? upper : lower;
  sum += __shfl_xor_sync(~0u, is_upper ? lower : upper, 16);
#pragma unroll
  for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

// |q| of head `lane`. queries: [group, d].
__device__ __forceinline__ float QueryNorm(const float* queries, int32_t group, int32_t head_dim) {
  const int lane = threadIdx.x % 32;
  float norm = 0.0f;
  for (int32_t g = 0; g < group; ++g) {
    float sum = 0.0f;
    for (int32_t i = lane; i < head_dim; i += 32) {
      const float q = queries[g * head_dim + i];
      sum += q * q;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == g) norm = sqrtf(sum);
  }
  return norm;
}

// Two neighbouring coordinates of mu and sigma, as they are in the record.
struct RecordPair {
  float2 mu;
  float2 sigma;
};

__device__ __forceinline__ RecordPair LoadPair(const std::byte* mu, const std::byte* sigma,
                                               int32_t pair, bool narrow) {
  if (!narrow) {
    return {UnpackPair<Half>(reinterpret_cast<const uint32_t*>(mu)[pair]),
            UnpackPair<Half>(reinterpret_cast<const uint32_t*>(sigma)[pair])};
  }
  const char2 steps = reinterpret_cast<const char2*>(mu)[pair];
  const uint32_t deviations = reinterpret_cast<const uint16_t*>(sigma)[pair];
  const float2 wide = UnpackPair<Half>(WidenE4M3(deviations).x);
  return {make_float2(static_cast<float>(steps.x), static_cast<float>(steps.y)),
          make_float2(256.0f * wide.x, 256.0f * wide.y)};
}

// The trailer of a record with a float16 index. Only M is read from the record.
__device__ __forceinline__ RecordTrailer Float16Trailer(float max_norm) {
  return {.max_norm = max_norm, .mu_scale = 1.0f, .mu_error = 0.0f, .sigma_scale = 1.0f};
}
// `record`: the record of all KV heads.
__device__ __forceinline__ RecordTrailer TrailerOf(const KvTile& tile, const std::byte* record,
                                                   int32_t kv_head) {
  const std::byte* scalars = record + tile.MaxNorm(kv_head);
  return tile.narrow_index ? *reinterpret_cast<const RecordTrailer*>(scalars)
                           : Float16Trailer(*reinterpret_cast<const float*>(scalars));
}

// <q, mu> and sum q_i^2 sigma_i^2, with mu and sigma as they are in the record.
struct RecordProducts {
  float q_mu;
  float variance;

  // Step 1 of the selection, in float32; `query_norm`: |q|.
  __device__ __forceinline__ BlockBound Bound(const RecordTrailer& record, float query_norm,
                                              float softmax_scale) const {
    return {.mean = record.mu_scale * q_mu + query_norm * record.mu_error,
            .deviation = record.sigma_scale * sqrtf(variance),
            .ceiling = query_norm * record.max_norm,
            .scale = softmax_scale};
  }
};

inline constexpr int kMaxPairs = kMaxHeadDim / 64;  // pairs of coordinates in a lane

// Multiplies head `lane` with one record, whose mu and sigma are given.
__device__ __forceinline__ RecordProducts MultiplyRecord(const float* queries, int32_t group,
                                                         int32_t head_dim, const std::byte* mu,
                                                         const std::byte* sigma, bool narrow) {
  const int lane = threadIdx.x % 32;
  const int32_t num_pairs = head_dim / 2;
  float2 means[kMaxPairs];
  float2 variances[kMaxPairs];
#pragma unroll
  for (int k = 0; k < kMaxPairs; ++k) {
    const int32_t pair = lane + 32 * k;
    means[k] = variances[k] = make_float2(0.0f, 0.0f);
    if (pair >= num_pairs) continue;
    const RecordPair loaded = LoadPair(mu, sigma, pair, narrow);
    means[k] = loaded.mu;
    variances[k] = make_float2(loaded.sigma.x * loaded.sigma.x, loaded.sigma.y * loaded.sigma.y);
  }
  RecordProducts products{};
  for (int32_t g = 0; g < group; ++g) {
    float q_mu = 0.0f;
    float variance = 0.0f;
#pragma unroll
    for (int k = 0; k < kMaxPairs; ++k) {
      const int32_t pair = lane + 32 * k;
      if (pair >= num_pairs) break;
      const float2 q = reinterpret_cast<const float2*>(queries + g * head_dim)[pair];
      q_mu += q.x * means[k].x + q.y * means[k].y;
      variance += q.x * q.x * variances[k].x + q.y * q.y * variances[k].y;
    }
    const float sum = SumHalves(q_mu, variance);
    const float q_mu_sum = __shfl_sync(~0u, sum, 0);
    const float variance_sum = __shfl_sync(~0u, sum, 16);
    if (lane == g) products = {q_mu_sum, variance_sum};
  }
  return products;
}

}  // namespace eta::cuda
