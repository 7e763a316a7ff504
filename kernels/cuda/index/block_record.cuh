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

// Writes the record of kind moment without its total. scratch.distances[0] has the squared norms of
// all keys but the last, which is in `keys`.
__device__ __forceinline__ void WriteMomentRecord(const KvTile& tile, const BlockWork& work,
                                                  std::byte* record, int32_t kv_head,
                                                  const float* keys, RecordScratch& scratch) {
  const int32_t d = tile.head_dim;
  const int32_t b = tile.block_size;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const float* last = keys + (b - 1) * KeyStride(d);
  // Of the sum, which few keys of a 16-bit cache leave exact: their mean is often a tie of float16.
  const auto mean = [&](int32_t c) {
    return (scratch.key_sum[c] + last[c]) / static_cast<float>(b);
  };
  SquareKeys(last, 1, d, nullptr, scratch.distances[0] + b - 1);
  float means[kRecordChunk];
#pragma unroll
  for (int j = 0; j < kRecordChunk; ++j) means[j] = mean(work.i + j);
  SumSquares(work, d, keys, means, /*left_out=*/-1, scratch);
  __syncthreads();

  float* rounded_mu = scratch.values;  // [d] each, for an 8-bit record
  float* rounded_sigma = scratch.values + d;
  const bool narrow = tile.form == RecordForm::kNarrow;
  if (thread < d) {
    const __half mu = __float2half_rn(mean(thread));
    const __half sigma = __float2half_rn(work.DeviationOf(thread, d, scratch));
    if (narrow) {
      rounded_mu[thread] = __half2float(mu);
      rounded_sigma[thread] = __half2float(sigma);
    } else {
      reinterpret_cast<__half*>(record + tile.Mu(kv_head))[thread] = mu;
      reinterpret_cast<__half*>(record + tile.Sigma(kv_head))[thread] = sigma;
    }
  }
  if (narrow) __syncthreads();
  if (thread >= 32) return;
  float largest = 0.0f;
  for (int32_t t = thread; t < b; t += 32) largest = fmaxf(largest, scratch.distances[0][t]);
  const float max_norm = sqrtf(LargestOfWarp(largest));
  if (narrow) {
    WriteNarrowVectors(tile, record, kv_head, rounded_mu, rounded_sigma, max_norm);
  } else if (thread == 0) {
    *reinterpret_cast<float*>(record + tile.Scalars(kv_head)) = max_norm;
  }
}

// The record of full block `ordinal` of a block table for one KV head, by all threads of a CTA.
// `chained`: the sum of V is added to the total of the block before; otherwise the record keeps the
// block's own sum. `keys`: memory for RecordSharedBytes().
class BlockRecordWork {
 public:
  __device__ __forceinline__ BlockRecordWork(const AppendArgs& args, const int32_t* table,
                                             int32_t ordinal, int32_t kv_head, bool chained,
                                             float* keys, RecordScratch& scratch)
      : tile_(args.tile),
        kv_head_(kv_head),
        keys_(keys),
        scratch_(scratch),
        work_(args.tile, args.sub_block, args.tiles + args.tile.K(table[ordinal], kv_head)),
        record_(args.records + table[ordinal] * args.tile.record_bytes()),
        total_(ValueTotal(args.tile, args.records, table[ordinal], kv_head)) {
    const int32_t d = tile_.head_dim;
    if (tile_.form == RecordForm::kOutlier && args.metric != nullptr) {
      metric_ = args.metric + static_cast<int64_t>(kv_head) * d * d;
    }
    if (chained && ordinal > 0) {
      before_ = ValueTotal(tile_, args.records, table[ordinal - 1], kv_head);
    }
    if (tile_.form == RecordForm::kOutlier && args.centre != nullptr) {
      centre_ = args.centre + kv_head * d;
    }
  }

  // The part of all tokens but the last. REQUIRES: they are in the cache, and whoever stored them
  // has met this thread since.
  template <typename T>
  __device__ __forceinline__ void Prepare() {
    const int32_t d = tile_.head_dim;
    const auto thread = static_cast<int32_t>(threadIdx.x);
    MetricPart part;
    MetricWalk ahead(MetricHalf());
    if (metric_ != nullptr) part.Load(metric_, d, ahead);
    if (before_ != nullptr && thread < d) total_before_ = before_[thread];
    if (centre_ != nullptr && thread < d) of_centre_ = centre_[thread];
    HoldTokens<T>(tile_, work_, keys_, scratch_);
    if (tile_.form == RecordForm::kOutlier) {
      PrepareDistances(tile_, keys_, metric_, part, ahead, scratch_);
    } else {
      SquareKeys(keys_, tile_.block_size - 1, d, nullptr, scratch_.distances[0]);
    }
  }

  // Where the last token is expected, as the cache has it: its key and its value, [d] each.
  __device__ __forceinline__ float* last_key() const {
    return keys_ + (tile_.block_size - 1) * KeyStride(tile_.head_dim);
  }
  __device__ __forceinline__ float* last_value() const { return scratch_.last_value; }
  template <typename T>
  __device__ __forceinline__ void LoadLast() {
    HoldLastToken<T>(tile_, work_, keys_, scratch_);
  }

  // REQUIRES: a __syncthreads() since the last token was brought. Ends with one.
  __device__ __forceinline__ void Finish() {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    if (thread < tile_.head_dim) {
      const float sum = scratch_.value_sum[thread] + scratch_.last_value[thread];
      total_[thread] = before_ != nullptr ? total_before_ + sum : sum;
    }
    if (tile_.form == RecordForm::kOutlier) {
      WriteOutlierRecord(tile_, work_, record_, kv_head_, metric_, of_centre_, keys_, scratch_);
    } else {
      WriteMomentRecord(tile_, work_, record_, kv_head_, keys_, scratch_);
    }
    __syncthreads();  // the next record uses the same memory
  }

 private:
  const KvTile& tile_;
  int32_t kv_head_;
  float* keys_;
  RecordScratch& scratch_;
  BlockWork work_;
  std::byte* record_;
  float* total_;
  const float* before_ = nullptr;
  const float* metric_ = nullptr;
  const float* centre_ = nullptr;
  float total_before_ = 0.0f;  // of the thread's coordinate, as the next one
  float of_centre_ = 0.0f;
};

#endif

}  // namespace eta::cuda
