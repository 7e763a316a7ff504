// The record of a full block, computed from its keys and values in the cache: kind moment here,
// kind outlier in outlier_record.cuh. The geometry fixes the order of the sums, whoever stored the
// tokens and in how many steps.
#pragma once

#include "kernels/cuda/index/outlier_record.cuh"
#include "kernels/cuda/index/record_sums.cuh"
#include "kernels/cuda/rows/head_vector.cuh"

namespace eta::cuda {

#ifdef __CUDACC__

// One warp writes an 8-bit record without v_total. `mu` and `sigma` [d] are those of a float16
// record.
__device__ __forceinline__ void WriteNarrowVectors(const KvTile& tile, std::byte* record,
                                                   int32_t kv_head, const float* mu,
                                                   const float* sigma, float max_norm) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  float largest_mu = 0.0f;
  float largest_sigma = 0.0f;
  for (int32_t c = lane; c < tile.head_dim; c += 32) {
    largest_mu = fmaxf(largest_mu, fabsf(mu[c]));
    largest_sigma = fmaxf(largest_sigma, sigma[c]);
  }
  const float mu_scale = LargestOfWarp(largest_mu) / 127.0f;
  const int32_t exponent = ScaleExponentOf(LargestOfWarp(largest_sigma));
  const float to_sigma8 = PowerOfTwo(-exponent);
  auto* mu8 = reinterpret_cast<int8_t*>(record + tile.Mu(kv_head));
  auto* sigma8 = reinterpret_cast<uint8_t*>(record + tile.Sigma(kv_head));
  float squares = 0.0f;
  for (int32_t c = lane; c < tile.head_dim; c += 32) {
    const float steps =
        mu_scale > 0.0f ? fminf(fmaxf(rintf(mu[c] / mu_scale), -127.0f), 127.0f) : 0.0f;
    const float lost = __fsub_rn(mu[c], __fmul_rn(mu_scale, steps));
    squares += lost * lost;
    mu8[c] = static_cast<int8_t>(steps);

    constexpr uint8_t kLargest = 0x7E;  // 448
    const float scaled = sigma[c] * to_sigma8;
    const auto nearest = static_cast<uint8_t>(ToE4M3(scaled, 0.0f) & 0xFF);
    const float down = __half2float(__half(__nv_cvt_fp8_to_halfraw(nearest, __NV_E4M3)));
    const bool below = down < scaled && nearest < kLargest;
    sigma8[c] = static_cast<uint8_t>(nearest + (below ? 1 : 0));
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) squares += __shfl_xor_sync(~0u, squares, lanes);
  if (lane == 0) {
    *reinterpret_cast<RecordTrailer*>(record + tile.Scalars(kv_head)) = {
        .max_norm = max_norm,
        .mu_scale = mu_scale,
        .mu_error = sqrtf(squares),
        .sigma_scale = PowerOfTwo(exponent)};
  }
}

// Writes the record of kind moment, with the squares of deviations that each lane has found for its
// coordinates, from the block's mean in scratch.mean.
template <typename T>
__device__ __forceinline__ void WriteMomentRecord(const KvTile& tile, const BlockWork& work,
                                                  std::byte* record, int32_t kv_head,
                                                  const float* norm_shares,
                                                  RecordScratch& scratch) {
  const int32_t d = tile.head_dim;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t chunks = d / kRecordChunk;
  for (int32_t token = thread; token < tile.block_size; token += kAppendThreads) {
    float norm = 0.0f;
    for (int32_t c = 0; c < chunks; ++c) norm += norm_shares[token * chunks + c];
    atomicMax(&scratch.max_norm, __float_as_int(norm));
  }
  __syncthreads();
  SumSquares<T>(tile, work, /*left_out=*/-1, scratch);
  __syncthreads();

  float* rounded_mu = scratch.values;  // [d] each, for an 8-bit record
  float* rounded_sigma = scratch.values + d;
  const bool narrow = tile.form == RecordForm::kNarrow;
  for (int32_t c = thread; c < d; c += kAppendThreads) {
    const __half mu = __float2half_rn(scratch.mean[c]);
    const __half sigma = __float2half_rn(work.DeviationOf(c, d, scratch));
    if (narrow) {
      rounded_mu[c] = __half2float(mu);
      rounded_sigma[c] = __half2float(sigma);
    } else {
      reinterpret_cast<__half*>(record + tile.Mu(kv_head))[c] = mu;
      reinterpret_cast<__half*>(record + tile.Sigma(kv_head))[c] = sigma;
    }
  }
  const float max_norm = sqrtf(__int_as_float(scratch.max_norm));
  if (narrow) {
    __syncthreads();
    if (thread < 32) {
      WriteNarrowVectors(tile, record, kv_head, rounded_mu, rounded_sigma, max_norm);
    }
  } else if (thread == 0) {
    *reinterpret_cast<float*>(record + tile.Scalars(kv_head)) = max_norm;
  }
}

// Writes the record of full block `ordinal` of a block table for one KV head. All threads of the
// CTA call it. `chained`: the sum of V is added to the total of the block before; otherwise the
// record keeps the block's own sum. REQUIRES: a __syncthreads() since the CTA stored tokens.
template <typename T>
__device__ __forceinline__ void WriteRecord(const AppendArgs& args, const int32_t* table,
                                            int32_t ordinal, int32_t kv_head, bool chained) {
  extern __shared__ __align__(16) float record_shared[];
  __shared__ RecordScratch scratch;
  const KvTile& tile = args.tile;
  const int32_t d = tile.head_dim;
  const int32_t block = table[ordinal];
  const BlockWork work(tile, args.sub_block, args.tiles + tile.K(block, kv_head));
  std::byte* record = args.records + block * tile.record_bytes();
  const bool moment = tile.form != RecordForm::kOutlier;
  SumTokens<T>(tile, work, moment ? record_shared : nullptr, scratch);
  if (threadIdx.x == 0) scratch.max_norm = 0;
  __syncthreads();

  const float* before = chained && ordinal > 0
                            ? ValueTotal(tile, args.records, table[ordinal - 1], kv_head)
                            : nullptr;
  float* total = ValueTotal(tile, args.records, block, kv_head);
  for (int32_t c = static_cast<int32_t>(threadIdx.x); c < d; c += kAppendThreads) {
    float key_sum = 0.0f;
    float value_sum = 0.0f;
    for (int32_t l = 0; l < work.shares.used_lanes(); ++l) {
      key_sum += scratch.keys[l * d + c];
      value_sum += scratch.values[l * d + c];
    }
    scratch.mean[c] = key_sum / static_cast<float>(tile.block_size);
    total[c] = before != nullptr ? before[c] + value_sum : value_sum;
  }
  if (moment) {
    WriteMomentRecord<T>(tile, work, record, kv_head, record_shared, scratch);
  } else {
    WriteOutlierRecord<T>(args, work, record, kv_head, record_shared, scratch);
  }
  __syncthreads();  // the next record uses the same scratch memory
}

#endif

}  // namespace eta::cuda
