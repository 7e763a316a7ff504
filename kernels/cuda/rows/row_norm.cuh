// RmsNorm in front of a product of few rows: every thread block normalises all rows for itself,
// into shared memory. That costs less than a kernel of its own, since weights are on their way
// meanwhile.
#pragma once

#include "kernels/cuda/rows/product_tile.cuh"

namespace eta::cuda::product {

inline constexpr int kRowsAtOnce = 2;
inline constexpr int kWidth = 4;  // elements that a thread loads at once
// A thread keeps its first kHeld pieces of a row in registers between the sum and the product. The
// rest of a longer row is read twice.
inline constexpr int kHeld = 2;

// The sums of the squares of kRowsAtOnce rows, on all threads. The row alone fixes the order.
__device__ __forceinline__ void SumOfThreads(float (&sums)[kRowsAtOnce]) {
  __shared__ float of_warps[kRowsAtOnce][kWarps];
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) sums[r] += __shfl_xor_sync(~0u, sums[r], lanes);
    if (threadIdx.x % 32 == 0) of_warps[r][threadIdx.x / 32] = sums[r];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    sums[r] = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sums[r] += of_warps[r][warp];
  }
  __syncthreads();  // the next sums use the same memory
}

// Writes the rows to `shared` [rows][SharedStride(k)], and each to args.x by one thread block. Ends
// with a barrier of all threads. REQUIRES: k is a multiple of 8.
template <typename T>
__device__ __forceinline__ void NormaliseRows(const Args& args, T* shared) {
  constexpr int32_t kPass = kThreads * kWidth;
  const auto first = static_cast<int32_t>(threadIdx.x) * kWidth;
  const int32_t stride = SharedStride(args.k);
  for (int32_t begin = 0; begin < args.rows; begin += kRowsAtOnce) {
    const auto source = [&](int r) {
      const int32_t row = min(begin + r, args.rows - 1);
      return args.normed +
             (args.norm_rows != nullptr ? args.norm_rows[row] : row) * args.normed_stride;
    };
    float values[kRowsAtOnce][kHeld][kWidth];
    float sums[kRowsAtOnce] = {};
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
      for (int n = 0; n < kHeld; ++n) {
        if (first + n * kPass < args.k) LoadElements(source(r) + first + n * kPass, values[r][n]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
      for (int n = 0; n < kHeld; ++n) {
        if (first + n * kPass >= args.k) break;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sums[r] += values[r][n][j] * values[r][n][j];
      }
      for (int32_t i = first + kHeld * kPass; i < args.k; i += kPass) {
        float more[kWidth];
        LoadElements(source(r) + i, more);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sums[r] += more[j] * more[j];
      }
    }
    SumOfThreads(sums);
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int32_t row = begin + r;
      if (row >= args.rows) break;
      const float scale = 1.0f / sqrtf(sums[r] / static_cast<float>(args.k) + args.eps);
      const bool publishes = row % gridDim.x == blockIdx.x;
      T* published = reinterpret_cast<T*>(const_cast<std::byte*>(args.x)) + row * args.x_stride;
      const auto finish = [&](int32_t i, float(&of_row)[kWidth]) {
        float factors[kWidth];
        LoadElements(args.norm_weight + i, factors);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) of_row[j] = of_row[j] * scale * factors[j];
        StoreElements(of_row, shared + row * stride + i);
        if (publishes) StoreElements(of_row, published + i);
      };
#pragma unroll
      for (int n = 0; n < kHeld; ++n) {
        if (first + n * kPass < args.k) finish(first + n * kPass, values[r][n]);
      }
      for (int32_t i = first + kHeld * kPass; i < args.k; i += kPass) {
        float more[kWidth];
        LoadElements(source(r) + i, more);
        finish(i, more);
      }
    }
  }
  __syncthreads();
}

}  // namespace eta::cuda::product
