// Products of the queries that share a KV head with one key or one record, for any geometry and
// form of record, without tensor cores.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/calibration_cells.h"
#include "kernels/cuda/device/kv_elements.cuh"
#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/select/block_mass.cuh"
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

// What bounds need of a query beside its products with records.
struct QueryTerms {
  float norm = 0.0f;    // |q|
  float size = 0.0f;    // |q|_1
  float centre = 0.0f;  // <q, k_0>
};

// Those of head `lane`. queries: [group, d]; `mean_key`: k_0 [d] or null.
__device__ __forceinline__ QueryTerms TermsOf(const float* queries, int32_t group, int32_t head_dim,
                                              const float* mean_key) {
  const int lane = threadIdx.x % 32;
  QueryTerms terms;
  for (int32_t g = 0; g < group; ++g) {
    float norm = 0.0f;
    float size = 0.0f;
    float centre = 0.0f;
    for (int32_t i = lane; i < head_dim; i += 32) {
      const float q = queries[g * head_dim + i];
      norm += q * q;
      size += fabsf(q);
      if (mean_key != nullptr) centre += q * mean_key[i];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      norm += __shfl_xor_sync(~0u, norm, step);
      size += __shfl_xor_sync(~0u, size, step);
      centre += __shfl_xor_sync(~0u, centre, step);
    }
    if (lane == g) terms = {sqrtf(norm), size, centre};
  }
  return terms;
}

// Two neighbouring coordinates of a record's vectors, as they are in the record.
struct RecordPair {
  float2 mu;
  float2 sigma;
  float2 outlier;  // kOutlier
};

// `record`: the record of all KV heads.
__device__ __forceinline__ RecordPair LoadPair(const KvTile& tile, const std::byte* record,
                                               int32_t kv_head, int32_t pair) {
  const std::byte* mu = record + tile.Mu(kv_head);
  const std::byte* sigma = record + tile.Sigma(kv_head);
  const auto whole = [](char2 steps) {
    return make_float2(static_cast<float>(steps.x), static_cast<float>(steps.y));
  };
  RecordPair loaded = {};
  if (tile.form == RecordForm::kHalf) {
    loaded.mu = UnpackPair<Half>(reinterpret_cast<const uint32_t*>(mu)[pair]);
    loaded.sigma = UnpackPair<Half>(reinterpret_cast<const uint32_t*>(sigma)[pair]);
    return loaded;
  }
  loaded.mu = whole(reinterpret_cast<const char2*>(mu)[pair]);
  if (tile.form == RecordForm::kNarrow) {
    const uint32_t deviations = reinterpret_cast<const uint16_t*>(sigma)[pair];
    const float2 wide = UnpackPair<Half>(WidenE4M3(deviations).x);
    loaded.sigma = make_float2(256.0f * wide.x, 256.0f * wide.y);
  } else {
    const uchar2 deviations = reinterpret_cast<const uchar2*>(sigma)[pair];
    loaded.sigma = make_float2(static_cast<float>(deviations.x), static_cast<float>(deviations.y));
    loaded.outlier = whole(reinterpret_cast<const char2*>(record + tile.Outlier(kv_head))[pair]);
  }
  return loaded;
}

// The scalars of a record in one form. Numbers that the record's form lacks are 0, or change
// nothing.
struct RecordScalars {
  float mu_scale = 1.0f;       // of q_mu
  float sigma_scale = 1.0f;    // of the deviation
  float mu_error = 0.0f;       // e
  float max_norm = 0.0f;       // M
  float outlier_scale = 0.0f;  // B
};

// `record`: the record of all KV heads.
__device__ __forceinline__ RecordScalars ScalarsOf(const KvTile& tile, const std::byte* record,
                                                   int32_t kv_head) {
  const std::byte* scalars = record + tile.Scalars(kv_head);
  if (tile.form == RecordForm::kHalf) {
    return {.max_norm = *reinterpret_cast<const float*>(scalars)};
  }
  if (tile.form == RecordForm::kNarrow) {
    const auto trailer = *reinterpret_cast<const RecordTrailer*>(scalars);
    return {.mu_scale = trailer.mu_scale,
            .sigma_scale = trailer.sigma_scale,
            .mu_error = trailer.mu_error,
            .max_norm = trailer.max_norm};
  }
  const float2 steps = UnpackPair<Half>(*reinterpret_cast<const uint32_t*>(scalars));
  return {.mu_scale = steps.x, .sigma_scale = steps.x, .outlier_scale = steps.y};
}

// Products with mu, sigma and the outlier as they are in the record.
struct RecordProducts {
  float q_mu;       // <q, mu>
  float variance;   // sum q_i^2 sigma_i^2
  float q_outlier;  // <q, k_out>

  __device__ __forceinline__ void Add(float2 q, const RecordPair& pair) {
    const float x = q.x * pair.sigma.x;
    const float y = q.y * pair.sigma.y;
    q_mu += q.x * pair.mu.x + q.y * pair.mu.y;
    variance += x * x + y * y;
    q_outlier += q.x * pair.outlier.x + q.y * pair.outlier.y;
  }

  // Step 1 of the selection, in float32.
  __device__ __forceinline__ BlockBound Bound(RecordForm form, const RecordScalars& record,
                                              const QueryTerms& query, float softmax_scale) const {
    BlockBound bound = {.mean = record.mu_scale * q_mu,
                        .deviation = record.sigma_scale * sqrtf(variance),
                        .ceiling = BlockBound::kInfinity,
                        .outlier = -BlockBound::kInfinity,
                        .scale = softmax_scale};
    if (form == RecordForm::kOutlier) {
      // An infinite step has zeros, and infinity times 0 is NaN.
      bound.mean += 0.5f * record.mu_scale * query.size + query.centre;
      bound.outlier = record.outlier_scale * q_outlier +
                      (0.5f * record.outlier_scale * query.size + query.centre);
    } else {
      bound.mean += query.norm * record.mu_error;
      bound.ceiling = query.norm * record.max_norm;
    }
    return bound;
  }
};

inline constexpr int kMaxPairs = kMaxHeadDim / 64;  // pairs of coordinates in a lane

// Multiplies head `lane` with one KV head's record. `record`: the record of all KV heads.
__device__ __forceinline__ RecordProducts MultiplyRecord(const float* queries, int32_t group,
                                                         const KvTile& tile,
                                                         const std::byte* record, int32_t kv_head) {
  const int lane = threadIdx.x % 32;
  const int32_t num_pairs = tile.head_dim / 2;
  const bool has_outlier = tile.form == RecordForm::kOutlier;
  RecordPair pairs[kMaxPairs] = {};
#pragma unroll
  for (int k = 0; k < kMaxPairs; ++k) {
    const int32_t pair = lane + 32 * k;
    if (pair < num_pairs) pairs[k] = LoadPair(tile, record, kv_head, pair);
  }
  RecordProducts products{};
  for (int32_t g = 0; g < group; ++g) {
    RecordProducts of_head{};
#pragma unroll
    for (int k = 0; k < kMaxPairs; ++k) {
      const int32_t pair = lane + 32 * k;
      if (pair >= num_pairs) break;
      of_head.Add(reinterpret_cast<const float2*>(queries + g * tile.head_dim)[pair], pairs[k]);
    }
    const float sum = SumHalves(of_head.q_mu, of_head.variance);
    of_head.q_mu = __shfl_sync(~0u, sum, 0);
    of_head.variance = __shfl_sync(~0u, sum, 16);
    if (has_outlier) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        of_head.q_outlier += __shfl_xor_sync(~0u, of_head.q_outlier, step);
      }
    }
    if (lane == g) products = of_head;
  }
  return products;
}

// What screening finds of a block for head `lane`: its bound, or with relative thresholds its mass
// and the term that it adds to Lhat, as logarithms with base 2.
struct ScreenedBlock {
  float value;
  float term;
};

// `record`: the record of all KV heads. `z`: of head `lane`.
__device__ __forceinline__ ScreenedBlock ScreenRecord(const float* queries, int32_t group,
                                                      const KvTile& tile, const std::byte* record,
                                                      int32_t kv_head, const QueryTerms& query,
                                                      float z, bool relative, const MassRule& rule,
                                                      float softmax_scale) {
  const RecordProducts products = MultiplyRecord(queries, group, tile, record, kv_head);
  const RecordScalars scalars = ScalarsOf(tile, record, kv_head);
  if (relative) {
    const float scale = kLog2E * softmax_scale;
    const float centre = scale * query.centre;
    const float deviation =
        softmax_scale * (scalars.sigma_scale * sqrtf(products.variance / kEnvelopeRatio));
    const float gaussian = rule.log_count + (scale * (scalars.mu_scale * products.q_mu) + centre);
    const float outlier = scale * (scalars.outlier_scale * products.q_outlier) + centre;
    return {BlockMass(rule, gaussian, deviation, outlier), LogAdd2(gaussian, outlier)};
  }
  const BlockBound bound = products.Bound(tile.form, scalars, query, softmax_scale);
  // A deviation that float16 cannot hold may be NaN; then only the norms bound the score.
  if (tile.form == RecordForm::kOutlier) return {bound.At(z), 0.0f};
  return {bound.scale * fminf(bound.mean + z * bound.deviation, bound.ceiling), 0.0f};
}

}  // namespace eta::cuda
