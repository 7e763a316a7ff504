// RmsNorm in front of a product of few rows: every thread block normalises all rows for itself,
// into shared memory. That costs less than a kernel of its own, since weights are on their way
// meanwhile.
//
// A row is cut into pieces of kWidth elements, dealt out to kThreads threads in turns, and the sums
// of the threads are added in one order. So a row's bits do not tell whether RmsNorm was a kernel
// of its own (NormRows in pointwise.cu) because the rows did not fit.
#pragma once

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/rows/product_tile.cuh"

namespace eta::cuda::product {

inline constexpr int kWidth = 4;
inline constexpr int kPass = kThreads * kWidth;  // elements that the threads take in one turn
inline constexpr int kMostNormed = 2;            // rows
// What all threads keep of a row in registers, in turns. The rest of a longer row is read twice.
inline constexpr int kHeld = 2;

// Shared memory of the norm: the normalised rows [R][stride], then the weights [K].
template <typename T>
struct NormMemory {
  T* rows;
  int32_t stride;
  float* factors;

  static __host__ __device__ size_t Bytes(int32_t rows, int32_t k) {
    return static_cast<size_t>(rows) * SharedStride(k) * sizeof(T) +
           static_cast<size_t>(k) * sizeof(float);
  }
  __device__ NormMemory(const Args& args, std::byte* memory)
      : NormMemory(args, memory, SharedStride(args.k)) {}
  __device__ NormMemory(const Args& args, std::byte* memory, int32_t row_stride)
      : rows(reinterpret_cast<T*>(memory)),
        stride(row_stride),
        factors(reinterpret_cast<float*>(rows + args.rows * row_stride)) {}

  // Starts to bring the weights. It needs nothing of the previous kernel.
  __device__ __forceinline__ void RequestFactors(const Args& args) const {
    for (auto i = static_cast<int32_t>(threadIdx.x) * kWidth; i < args.k; i += kPass) {
      CopyAsync<16>(factors + i, args.norm_weight + i);
    }
    CommitGroup();
  }
};

__device__ __forceinline__ const float* NormSource(const Args& args, int32_t row) {
  const int32_t from = args.norm_rows != nullptr ? args.norm_rows[row] : row;
  return args.normed + from * args.normed_stride;
}

__device__ __forceinline__ float NormScale(const Args& args, float squares) {
  return 1.0f / sqrtf(squares / static_cast<float>(args.k) + args.eps);
}

__device__ __forceinline__ float SumOfLanes(float sum) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  return sum;
}

__device__ __forceinline__ void AddSquares(const float (&values)[kWidth], float& sum) {
#pragma unroll
  for (int j = 0; j < kWidth; ++j) sum = fmaf(values[j], values[j], sum);
}

// Writes elements i .. i + kWidth - 1 of a row, and to args.x too by one thread block.
template <typename T>
__device__ __forceinline__ void StoreNormalised(const Args& args, const NormMemory<T>& memory,
                                                int32_t row, int32_t i, float scale,
                                                float (&values)[kWidth]) {
  float factors[kWidth];
  LoadElements(memory.factors + i, factors);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] = values[j] * scale * factors[j];
  StoreElements(values, memory.rows + row * memory.stride + i);
  if (row % gridDim.x != blockIdx.x) return;
  T* x = reinterpret_cast<T*>(const_cast<std::byte*>(args.x));
  StoreElements(values, x + row * args.x_stride + i);
}

// Normalises the rows. Ends with a barrier of all threads of `Block`. REQUIRES: RequestFactors()
// before, and at most kMostNormed rows.
template <typename Block, typename T>
__device__ __forceinline__ void NormaliseRows(const Args& args, const NormMemory<T>& memory) {
  __shared__ float of_warps[kMostNormed][kWarps];
  WaitGroups<0>();
  Block::Sync();
  const auto first = static_cast<int32_t>(threadIdx.x) * kWidth;
  float values[kMostNormed][kHeld][kWidth];
#pragma unroll
  for (int r = 0; r < kMostNormed; ++r) {
    if (r >= args.rows) break;
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      if (first + n * kPass < args.k)
        LoadElements(NormSource(args, r) + first + n * kPass, values[r][n]);
    }
  }
#pragma unroll
  for (int r = 0; r < kMostNormed; ++r) {
    if (r >= args.rows) break;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      if (first + n * kPass < args.k) AddSquares(values[r][n], sum);
    }
    for (int32_t i = first + kHeld * kPass; i < args.k; i += kPass) {
      float more[kWidth];
      LoadElements(NormSource(args, r) + i, more);
      AddSquares(more, sum);
    }
    sum = SumOfLanes(sum);
    if (threadIdx.x % 32 == 0) of_warps[r][threadIdx.x / 32] = sum;
  }
  Block::Sync();
#pragma unroll
  for (int r = 0; r < kMostNormed; ++r) {
    if (r >= args.rows) break;
    float squares = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) squares += of_warps[r][warp];
    const float scale = NormScale(args, squares);
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      const int32_t i = first + n * kPass;
      if (i < args.k) StoreNormalised(args, memory, r, i, scale, values[r][n]);
    }
    for (int32_t i = first + kHeld * kPass; i < args.k; i += kPass) {
      float more[kWidth];
      LoadElements(NormSource(args, r) + i, more);
      StoreNormalised(args, memory, r, i, scale, more);
    }
  }
  Block::Sync();
}

}  // namespace eta::cuda::product
