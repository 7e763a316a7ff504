// x^T C x of a block's keys on tensor cores, where C is the metric of a model (eta-semantics.md,
// "Index kinds").
//
// These are b * d * d multiplications, once in b tokens. Latency binds, so the metric's numbers are
// requested together with the keys. Tensor cores multiply in tf32: of every factor the high part
// and the rest, the product of two rests left out, 21 bits. The form is symmetric, so of 16 x 16
// squares of C those below the diagonal count twice and those above it are not read.
#pragma once

#include "kernels/cuda/index/record_sums.cuh"

namespace eta::cuda {

#ifdef __CUDACC__

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

// keys [tokens up to a multiple of 16][KeyStride] in shared memory. Leaves in distances[half] a
// warp's part of x^T C x, where x is a key less `origin`. `part`: the first squares of the warp,
// `ahead`: the walk behind them.
__device__ __forceinline__ void MultiplyMetric(const float* keys, int32_t tokens, int32_t d,
                                               const float* origin, const float* metric,
                                               MetricPart part, MetricWalk ahead,
                                               float* distances) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t stride = KeyStride(d);
  constexpr int32_t kTokens = kAppendThreads / 64 * 16;  // two warps take 16
  const int32_t place = lane % 4 * 4;
#pragma unroll 1
  for (auto first = static_cast<int32_t>(threadIdx.x / 64) * 16; first < tokens; first += kTokens) {
    if (first >= kTokens) {
      ahead = MetricWalk(MetricHalf());
      part.Load(metric, d, ahead);
    }
    const float* own = keys + (first + lane / 4) * stride;  // and 8 keys later
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
        const int32_t at = walk.column * 16 + place;
        float low[4];
        float high[4];
        float from[4];
        LoadElements(own + at, low);
        LoadElements(own + at + 8 * stride, high);
        LoadElements(origin + at, from);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          low[j] -= from[j];
          high[j] -= from[j];
        }
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          uint32_t a[4];
          uint32_t a_rest[4];
          SplitTf32(low[2 * k], a[0], a_rest[0]);
          SplitTf32(high[2 * k], a[1], a_rest[1]);
          SplitTf32(low[2 * k + 1], a[2], a_rest[2]);
          SplitTf32(high[2 * k + 1], a[3], a_rest[3]);
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
          const int32_t x = walk.row * 16 + lane % 4 * 2;
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            float of_low[2];
            float of_high[2];
            float less[2];
            LoadElements(own + x + 8 * n, of_low);
            LoadElements(own + x + 8 * n + 8 * stride, of_high);
            LoadElements(origin + x + 8 * n, less);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              distance[0] += sums[n][j] * (of_low[j] - less[j]);
              distance[1] += sums[n][2 + j] * (of_high[j] - less[j]);
            }
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
}

#endif

}  // namespace eta::cuda
