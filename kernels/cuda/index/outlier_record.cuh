// The record of kind outlier (eta-semantics.md, "Index kinds"): of a block's keys the one that
// stands out, and mean and deviation of the others.
//
// Which key stands out is a quadratic form of every key, b * d * d multiplications, once in b
// tokens. Latency binds, so the metric's numbers are requested before the keys are there. Tensor
// cores multiply in tf32: of every factor the high part and the rest, the product of two rests left
// out, 21 bits. The form is symmetric, so of 16 x 16 squares of C those below the diagonal count
// twice and those above it are not read.
#pragma once

#include "kernels/cuda/index/record_sums.cuh"

namespace eta::cuda {

#ifdef __CUDACC__

// Brings the metric of a KV head near before the record is written. The metric never changes, so
// this may come before WaitForPrevious().
__device__ __forceinline__ void PrefetchMetric(const AppendArgs& args, int32_t kv_head) {
  if (args.tile.form != RecordForm::kOutlier || args.metric == nullptr) return;
  constexpr int32_t kLine = 32;  // floats
  const int32_t floats = args.tile.head_dim * args.tile.head_dim;
  const float* from = args.metric + static_cast<int64_t>(kv_head) * floats;
  for (int32_t at = static_cast<int32_t>(threadIdx.x) * kLine; at < floats;
       at += kAppendThreads * kLine) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(from + at));
  }
}

// The high part of a float as tf32 has it, and the rest.
__device__ __forceinline__ void SplitTf32(float x, uint32_t& high, uint32_t& rest) {
  high = __float_as_uint(x) & 0xFFFFE000u;
  rest = __float_as_uint(x - __uint_as_float(high));
}

// c += a * b, 16 x 8 x 8: with r = lane / 4 and t = lane % 4 a lane holds a[0] (r, t), a[1]
// (r + 8, t), a[2] (r, t + 4), a[3] (r + 8, t + 4); b[0] (t, r), b[1] (t + 4, r); c as in mma.cuh.
__device__ __forceinline__ void MmaTf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A warp's walk over squares (I, J) of the metric, J <= I. Two warps share the rows I so that both
// have as many squares: one takes 0, 3, 4, 7 and so on.
struct MetricWalk {
  int32_t half;
  int32_t row = 0;     // I
  int32_t column = 0;  // J
  int32_t pair = 0;

  __device__ __forceinline__ explicit MetricWalk(int32_t of_half) : half(of_half), row(of_half) {}
  __device__ __forceinline__ bool IsDiagonal() const { return row == column; }
  __device__ __forceinline__ void Advance() {
    if (column++ < row) return;
    column = 0;
    ++pair;
    row = 2 * pair + ((pair + half) & 1);
  }
};

// The squares of the metric that a warp multiplies next: of rows 16 I + r and 16 I + 8 + r the
// coordinates 16 J + 4t .. + 3. A product may take coordinates in any order.
struct MetricPart {
  static constexpr int kSquares = 5;  // all that a warp has at d = 64
  float4 rows[kSquares][2];

  __device__ __forceinline__ void Load(const float* metric, int32_t d, MetricWalk& walk) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < kSquares; ++i) {
      if (walk.row * 16 >= d) continue;
      const float* from = metric + (walk.row * 16 + lane / 4) * d + walk.column * 16 + lane % 4 * 4;
      rows[i][0] = *reinterpret_cast<const float4*>(from);
      rows[i][1] = *reinterpret_cast<const float4*>(from + 8 * d);
      walk.Advance();
    }
  }
};

// The warp that works on a half of the metric for 16 of the keys.
__device__ __forceinline__ int32_t MetricHalf() {
  return static_cast<int32_t>(threadIdx.x / 32) % 2;
}

// keys [tokens up to a multiple of 16][DistanceStride] in shared memory. Leaves in distances[half]
// a warp's part of x^T C x of every key x. `part`: the first squares of the warp, `ahead`: the walk
// behind them.
__device__ __forceinline__ void MultiplyMetric(const float* keys, int32_t tokens, int32_t d,
                                               const float* metric, MetricPart part,
                                               MetricWalk ahead, float* distances) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t stride = DistanceStride(d);
  const int32_t first = static_cast<int32_t>(threadIdx.x / 64) * 16;
  if (first >= tokens) return;
  const float* own = keys + (first + lane / 4) * stride;  // and 8 keys later
  const int32_t place = lane % 4 * 4;
  float distance[2] = {};
  float sums[2][4] = {};  // of C x: coordinates 16 I + 2t, and 8 later
  MetricWalk walk(MetricHalf());
  while (walk.row * 16 < d) {
#pragma unroll
    for (int i = 0; i < MetricPart::kSquares; ++i) {
      if (walk.row * 16 >= d) break;
      const bool diagonal = walk.IsDiagonal();
      if (diagonal) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[n][e] *= 2.0f;
        }
      }
      const float* at = own + walk.column * 16 + place;
      const float4 low = *reinterpret_cast<const float4*>(at);
      const float4 high = *reinterpret_cast<const float4*>(at + 8 * stride);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        uint32_t a[4];
        uint32_t a_rest[4];
        SplitTf32(k == 0 ? low.x : low.z, a[0], a_rest[0]);
        SplitTf32(k == 0 ? high.x : high.z, a[1], a_rest[1]);
        SplitTf32(k == 0 ? low.y : low.w, a[2], a_rest[2]);
        SplitTf32(k == 0 ? high.y : high.w, a[3], a_rest[3]);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const float4& c = part.rows[i][n];
          uint32_t b[2];
          uint32_t b_rest[2];
          SplitTf32(k == 0 ? c.x : c.z, b[0], b_rest[0]);
          SplitTf32(k == 0 ? c.y : c.w, b[1], b_rest[1]);
          MmaTf32(sums[n], a_rest, b[0], b[1]);
          MmaTf32(sums[n], a, b_rest[0], b_rest[1]);
          MmaTf32(sums[n], a, b[0], b[1]);
        }
      }
      if (diagonal) {
        const float* x = own + walk.row * 16 + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const float2 of_low = *reinterpret_cast<const float2*>(x + 8 * n);
          const float2 of_high = *reinterpret_cast<const float2*>(x + 8 * n + 8 * stride);
          distance[0] += sums[n][0] * of_low.x + sums[n][1] * of_low.y;
          distance[1] += sums[n][2] * of_high.x + sums[n][3] * of_high.y;
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[n][e] = 0.0f;
        }
      }
      walk.Advance();
    }
    part.Load(metric, d, ahead);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    distance[i] += __shfl_xor_sync(~0u, distance[i], 1);
    distance[i] += __shfl_xor_sync(~0u, distance[i], 2);
    const int32_t token = first + lane / 4 + 8 * i;
    if (lane % 4 == 0 && token < tokens) distances[token] = distance[i];
  }
}

// The squared norm of every key.
__device__ __forceinline__ void SquareKeys(const float* keys, int32_t tokens, int32_t d,
                                           float* distances) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t stride = DistanceStride(d);
  for (auto t = static_cast<int32_t>(threadIdx.x / 32); t < tokens; t += kAppendThreads / 32) {
    float distance = 0.0f;
    for (int32_t c = lane; c < d; c += 32) {
      distance += keys[t * stride + c] * keys[t * stride + c];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) distance += __shfl_xor_sync(~0u, distance, step);
    if (lane == 0) distances[t] = distance;
  }
}

// The token with the largest distance, the lowest on a tie. A NaN is larger than nothing; the first
// token is what remains. Every warp finds it by itself.
__device__ __forceinline__ int32_t LargestDistance(const RecordScratch& scratch, int32_t tokens) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  float best = -INFINITY;
  int32_t at = lane;
  for (int32_t t = lane; t < tokens; t += 32) {
    const float distance = scratch.distances[0][t] + scratch.distances[1][t];
    if (t == 0 && distance != distance) best = INFINITY;
    if (distance > best) {
      best = distance;
      at = t;
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(~0u, best, step);
    const int32_t place = __shfl_xor_sync(~0u, at, step);
    if (other > best || (other == best && place < at)) {
      best = other;
      at = place;
    }
  }
  return at;
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

// One warp rounds the vectors mu, sigma and outlier, [d] each, the first and the last less the
// centre.
__device__ __forceinline__ void WriteOutlierVectors(const KvTile& tile, std::byte* record,
                                                    int32_t kv_head, const float* mu,
                                                    const float* sigma, const float* outlier) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  // As bits, so that a NaN counts as larger than all others.
  uint32_t largest_mu = 0;
  uint32_t largest_sigma = 0;
  uint32_t largest_outlier = 0;
  for (int32_t c = lane; c < tile.head_dim; c += 32) {
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
  for (int32_t c = lane; c < tile.head_dim; c += 32) {
    const float up = by > 0.0f ? ceilf(sigma[c] / by) : 0.0f;
    mu8[c] = round(mu[c], by);
    sigma8[c] = static_cast<uint8_t>(fminf(fmaxf(up, 0.0f), 255.0f));
    outlier8[c] = round(outlier[c], outlier_by);
  }
  if (lane == 0) {
    *reinterpret_cast<OutlierTrailer*>(record + tile.Scalars(kv_head)) = {
        .step = __half_as_ushort(step), .outlier_step = __half_as_ushort(outlier_step)};
  }
}

// Finds the token that stands out from the block's mean in scratch.mean.
template <typename T>
__device__ __forceinline__ int32_t FindOutlier(const AppendArgs& args, const BlockWork& work,
                                               int32_t kv_head, float* keys,
                                               RecordScratch& scratch) {
  const KvTile& tile = args.tile;
  const int32_t d = tile.head_dim;
  const int32_t stride = DistanceStride(d);
  const int32_t quads = d / 4;
  const bool has_metric = args.metric != nullptr;
  const float* metric = has_metric ? args.metric + static_cast<int64_t>(kv_head) * d * d : nullptr;
  MetricPart part;
  MetricWalk ahead(MetricHalf());
  if (has_metric) part.Load(metric, d, ahead);
  for (int32_t begin = 0; begin < tile.block_size; begin += kDistanceTokens) {
    const int32_t tokens = min(kDistanceTokens, tile.block_size - begin);
    __syncthreads();
#pragma unroll 2
    for (int32_t at = threadIdx.x; at < tokens * quads; at += kAppendThreads) {
      const int32_t i = at % quads * 4;
      float key[4];
      LoadKeyElements<T>(tile, work.head, begin + at / quads, i, key);
#pragma unroll
      for (int j = 0; j < 4; ++j) key[j] -= scratch.mean[i + j];
      StoreElements(key, keys + at / quads * stride + i);
    }
    __syncthreads();
    if (has_metric) {
      MultiplyMetric(keys, tokens, d, metric, part, ahead, scratch.distances[MetricHalf()] + begin);
    } else {
      SquareKeys(keys, tokens, d, scratch.distances[0] + begin);
      for (int32_t t = threadIdx.x; t < tokens; t += kAppendThreads) {
        scratch.distances[1][begin + t] = 0.0f;
      }
    }
  }
  __syncthreads();
  return LargestDistance(scratch, tile.block_size);
}

// Writes the record of a block without its total. scratch.mean is the mean of all its keys; `keys`
// is memory for RecordSharedBytes().
template <typename T>
__device__ __forceinline__ void WriteOutlierRecord(const AppendArgs& args, const BlockWork& work,
                                                   std::byte* record, int32_t kv_head, float* keys,
                                                   RecordScratch& scratch) {
  const KvTile& tile = args.tile;
  const int32_t d = tile.head_dim;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t left_out = FindOutlier<T>(args, work, kv_head, keys, scratch);
  const auto others = static_cast<float>(tile.block_size - 1);
  for (int32_t i = 4 * thread; i < d; i += 4 * kAppendThreads) {
    float outlier[4];
    LoadKeyElements<T>(tile, work.head, left_out, i, outlier);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float mean = scratch.mean[i + j];
      scratch.outlier[i + j] = outlier[j];
      scratch.mean[i + j] = others > 0.0f ? mean - (outlier[j] - mean) / others : 0.0f;
    }
  }
  __syncthreads();
  SumSquares<T>(tile, work, left_out, scratch);
  __syncthreads();
  float* mu = scratch.values;  // [d] each
  float* sigma = scratch.values + d;
  float* outlier = scratch.values + 2 * d;
  for (int32_t c = thread; c < d; c += kAppendThreads) {
    const float centre = args.centre != nullptr ? args.centre[kv_head * d + c] : 0.0f;
    mu[c] = scratch.mean[c] - centre;
    sigma[c] = work.DeviationOf(c, d, scratch);
    outlier[c] = scratch.outlier[c] - centre;
  }
  __syncthreads();
  if (thread < 32) WriteOutlierVectors(tile, record, kv_head, mu, sigma, outlier);
}

#endif

}  // namespace eta::cuda
