// The record of kind outlier (eta-semantics.md, "Index kinds"): of a block's keys the one that
// stands out, and mean and deviation of the others.
//
// The key that stands out has the largest distance (x - delta)^T C (x - delta) from the block's
// mean, where x is the key less the mean of all tokens but the last (scratch.origin) and delta what
// the last one adds to that mean, (key - origin) / b. The part that needs no delta, x^T C x, is
// prepared. What is left is -2 <x, lean> with lean = C delta, and one number for all keys, which
// does not count. The last key's x is b delta, so its distance is (b - 2) <x, lean>.
#pragma once

#include "kernels/cuda/index/metric_product.cuh"
#include "kernels/cuda/index/record_sums.cuh"

namespace eta::cuda {

#ifdef __CUDACC__

// Leaves the prepared part of the distances of all tokens but the last. `part` and `ahead`: the
// first squares of the metric, if there is one.
__device__ __forceinline__ void PrepareDistances(const KvTile& tile, const float* keys,
                                                 const float* metric, const MetricPart& part,
                                                 const MetricWalk& ahead, RecordScratch& scratch) {
  const int32_t d = tile.head_dim;
  const int32_t count = tile.block_size - 1;
  if (metric != nullptr) {
    MultiplyMetric(keys, count, d, scratch.origin, metric, part, ahead,
                   scratch.distances[MetricHalf()]);
    return;
  }
  SquareKeys(keys, count, d, scratch.origin, scratch.distances[0]);
  for (auto t = static_cast<int32_t>(threadIdx.x); t < count; t += kAppendThreads) {
    scratch.distances[1][t] = 0.0f;
  }
}

// Leaves in scratch.distances[0] every key's distance, less what is one for all of them. `metric`:
// of the KV head, or null. It has a __syncthreads() inside.
__device__ __forceinline__ void FinishDistances(const KvTile& tile, const float* keys,
                                                const float* metric, RecordScratch& scratch) {
  const int32_t d = tile.head_dim;
  const int32_t b = tile.block_size;
  const int32_t stride = KeyStride(d);
  const float* last = keys + (b - 1) * stride;
  const float share = 1.0f / static_cast<float>(b);
  const auto delta = [&](int32_t i, float(&to)[4]) {
    float from[4];
    LoadElements(last + i, to);
    LoadElements(scratch.origin + i, from);
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j] = (to[j] - from[j]) * share;
  };
  if (metric != nullptr) {
    SumVectors(
        d, d,
        [&](int32_t n, int32_t i, float& sum) {
          float c[4];
          float x[4];
          LoadElements(metric + n * d + i, c);
          delta(i, x);
#pragma unroll
          for (int j = 0; j < 4; ++j) sum += c[j] * x[j];
        },
        [&](int32_t n, float sum) { scratch.lean[n] = sum; });
  } else {
    for (auto c = static_cast<int32_t>(threadIdx.x); c < d; c += kAppendThreads) {
      scratch.lean[c] = (last[c] - scratch.origin[c]) * share;
    }
  }
  __syncthreads();
  SumVectors(
      b, d,
      [&](int32_t n, int32_t i, float& sum) {
        float key[4];
        float from[4];
        float lean[4];
        LoadElements(keys + n * stride + i, key);
        LoadElements(scratch.origin + i, from);
        LoadElements(scratch.lean + i, lean);
#pragma unroll
        for (int j = 0; j < 4; ++j) sum += (key[j] - from[j]) * lean[j];
      },
      [&](int32_t n, float sum) {
        scratch.distances[0][n] =
            n < b - 1 ? scratch.distances[0][n] + scratch.distances[1][n] - 2.0f * sum
                      : static_cast<float>(b - 2) * sum;
      });
}

// The token with the largest distance, the lowest on a tie. A NaN is larger than nothing; the first
// token is what remains. Every warp finds it by itself.
__device__ __forceinline__ int32_t LargestDistance(const float* distances, int32_t tokens) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  constexpr uint32_t kMost = ~0u;
  uint32_t best = 0;  // ordered like distances
  int32_t at = 0;
  for (int32_t t = lane; t < tokens; t += 32) {
    const float distance = distances[t];
    const uint32_t bits = __float_as_uint(distance);
    const uint32_t ordered = distance != distance        ? (t == 0 ? kMost : 0)
                             : (bits & 0x80000000u) != 0 ? ~bits
                                                         : bits | 0x80000000u;
    if (ordered > best) {
      best = ordered;
      at = t;
    }
  }
  const uint32_t most = __reduce_max_sync(~0u, best);
  return static_cast<int32_t>(
      __reduce_min_sync(~0u, best == most ? static_cast<uint32_t>(at) : kMost));
}

// The least float16 that is not below a positive `value`; infinity for NaN.
__device__ __forceinline__ __half HalfUp(float value) {
  constexpr uint16_t kInfinity = 0x7C00;
  if (value != value) return __ushort_as_half(kInfinity);
  const __half nearest = __float2half_rn(value);
  const uint16_t bits = __half_as_ushort(nearest);
  return __half2float(nearest) < value ? __ushort_as_half(bits + 1) : nearest;
}

// What vectors are divided by: 0 if the step does not divide.
__device__ __forceinline__ float Divisor(float step) {
  return step > 0.0f && step < INFINITY ? step : 0.0f;
}

// Rounds the vectors mu, sigma and outlier [d] in shared memory, the first and the last less the
// centre. All threads call it.
__device__ __forceinline__ void WriteOutlierVectors(const KvTile& tile, std::byte* record,
                                                    int32_t kv_head, const float* mu,
                                                    const float* sigma, const float* outlier) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t d = tile.head_dim;
  if (thread / 32 * 32 >= d) return;
  // As bits, so that a NaN counts as larger than all others. Every warp finds them by itself.
  uint32_t largest_mu = 0;
  uint32_t largest_sigma = 0;
  uint32_t largest_outlier = 0;
  for (int32_t c = thread % 32; c < d; c += 32) {
    largest_mu = max(largest_mu, __float_as_uint(fabsf(mu[c])));
    largest_sigma = max(largest_sigma, __float_as_uint(fabsf(sigma[c])));
    largest_outlier = max(largest_outlier, __float_as_uint(fabsf(outlier[c])));
  }
  const auto of_warp = [](uint32_t bits) { return LargestOfWarp(__uint_as_float(bits)); };
  const __half for_mu = HalfUp(of_warp(largest_mu) / 127.0f);
  const __half for_sigma = HalfUp(of_warp(largest_sigma) / 255.0f);
  const __half step = __half2float(for_mu) < __half2float(for_sigma) ? for_sigma : for_mu;
  const __half outlier_step = HalfUp(of_warp(largest_outlier) / 127.0f);
  const float by = Divisor(__half2float(step));
  const float outlier_by = Divisor(__half2float(outlier_step));
  const auto round = [](float value, float divisor) {
    const float steps = divisor > 0.0f ? rintf(value / divisor) : 0.0f;
    return static_cast<int8_t>(fminf(fmaxf(steps, -127.0f), 127.0f));
  };
  auto* mu8 = reinterpret_cast<int8_t*>(record + tile.Mu(kv_head));
  auto* sigma8 = reinterpret_cast<uint8_t*>(record + tile.Sigma(kv_head));
  auto* outlier8 = reinterpret_cast<int8_t*>(record + tile.Outlier(kv_head));
  if (thread < d) {
    const float up = by > 0.0f ? ceilf(sigma[thread] / by) : 0.0f;
    mu8[thread] = round(mu[thread], by);
    sigma8[thread] = static_cast<uint8_t>(fminf(fmaxf(up, 0.0f), 255.0f));
    outlier8[thread] = round(outlier[thread], outlier_by);
  }
  if (thread == 0) {
    *reinterpret_cast<OutlierTrailer*>(record + tile.Scalars(kv_head)) = {
        .step = __half_as_ushort(step), .outlier_step = __half_as_ushort(outlier_step)};
  }
}

// Writes the record without its total. The distances are prepared, and the last token is in `keys`.
// `centre`: of the thread's coordinate.
__device__ __forceinline__ void WriteOutlierRecord(const KvTile& tile, const BlockWork& work,
                                                   std::byte* record, int32_t kv_head,
                                                   const float* metric, float centre,
                                                   const float* keys, RecordScratch& scratch) {
  const int32_t d = tile.head_dim;
  const int32_t b = tile.block_size;
  const int32_t stride = KeyStride(d);
  FinishDistances(tile, keys, metric, scratch);
  __syncthreads();
  const float* outlier = keys + LargestDistance(scratch.distances[0], b) * stride;
  const float* last = keys + (b - 1) * stride;
  const float share = b > 1 ? 1.0f / static_cast<float>(b - 1) : 0.0f;
  // The mean of the others: the last one takes the outlier's place.
  const auto mean = [&](int32_t c) { return scratch.origin[c] + (last[c] - outlier[c]) * share; };
  float means[kRecordChunk];
#pragma unroll
  for (int j = 0; j < kRecordChunk; ++j) means[j] = mean(work.i + j);
  SumSquares(work, d, keys, means, static_cast<int32_t>(outlier - keys) / stride, scratch);
  __syncthreads();
  float* mu = scratch.values;  // [d] each
  float* sigma = scratch.values + d;
  float* of_outlier = scratch.values + 2 * d;
  static_assert(kMaxHeadDim <= kAppendThreads);
  if (const auto c = static_cast<int32_t>(threadIdx.x); c < d) {
    mu[c] = mean(c) - centre;
    sigma[c] = work.DeviationOf(c, d, scratch);
    of_outlier[c] = outlier[c] - centre;
  }
  __syncthreads();
  WriteOutlierVectors(tile, record, kv_head, mu, sigma, of_outlier);
}

#endif

}  // namespace eta::cuda
