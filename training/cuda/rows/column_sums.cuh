// Sums over rows, in an order that depends on the shape alone: blocks of threads sum chunks of
// rows, and a second kernel adds the chunks up in order.
#pragma once

#include <algorithm>

#include "training/cuda/rows/elements.cuh"

namespace eta::training::cuda {

inline constexpr int kSumLanes = 32;  // threads beside each other
inline constexpr int kSumDepth = 8;   // threads that share a column
inline constexpr int kMostChunks = 256;

// partial [chunks, cols]: sums of value(row, col, float (&)[kWidth]).
template <int kWidth, typename Value>
__global__ void __launch_bounds__(kSumLanes* kSumDepth)
    SumChunks(Value value, int64_t rows, int64_t cols, int64_t chunk_rows, float* partial) {
  __shared__ float sums[kSumDepth][kSumLanes * kWidth];
  Begin();
  const int lane = threadIdx.x % kSumLanes;
  const int depth = threadIdx.x / kSumLanes;
  const int64_t col = (int64_t{blockIdx.x} * kSumLanes + lane) * kWidth;
  const int64_t begin = blockIdx.y * chunk_rows;
  const int64_t end = min(rows, begin + chunk_rows);
  float sum[kWidth] = {};
  if (col < cols) {
    for (int64_t row = begin + depth; row < end; row += kSumDepth) {
      float add[kWidth];
      value(row, col, add);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += add[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sums[depth][lane * kWidth + i] = sum[i];
  __syncthreads();
  for (int at = threadIdx.x; at < kSumLanes * kWidth; at += kSumLanes * kSumDepth) {
    const int64_t to = int64_t{blockIdx.x} * kSumLanes * kWidth + at;
    if (to >= cols) continue;
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kSumDepth; ++i) total += sums[i][at];
    partial[blockIdx.y * cols + to] = total;
  }
}

// out[i] += the sum of partial[chunk, i + n * period] over chunks and n < repeats.
__global__ void __launch_bounds__(kThreads)
    AddChunks(const float* partial, int32_t chunks, int64_t cols, int64_t period, float* out);

// out [period] += sums of value over rows; columns i, i + period, ... of `cols` go to out[i].
template <typename Value>
void AddColumnSums(Context& context, const char* what, const Value& value, int64_t rows,
                   int64_t cols, int64_t period, bool fours, float* out) {
  if (out == nullptr || rows == 0) return;
  WithWidth(fours, [&](auto width) {
    const unsigned blocks = BlocksOf(cols, int64_t{kSumLanes} * width());
    const auto chunks = static_cast<int32_t>(
        std::clamp<int64_t>(std::min<int64_t>(rows / 32, 1024 / blocks), 1, kMostChunks));
    const int64_t chunk_rows = (rows + chunks - 1) / chunks;
    auto* partial = static_cast<float*>(context.workspace.Get(
        Workspace::Use::kSums, static_cast<size_t>(chunks * cols) * sizeof(float)));
    if (partial == nullptr) return;
    eta::cuda::Launch(
        context.device, what,
        {.grid = {blocks, static_cast<unsigned>(chunks)}, .block = kSumLanes * kSumDepth},
        SumChunks<width(), Value>, value, rows, cols, chunk_rows, partial);
    eta::cuda::Launch(context.device, what, {.grid = BlocksOf(period), .block = kThreads},
                      AddChunks, static_cast<const float*>(partial), chunks, cols, period, out);
  });
}

}  // namespace eta::training::cuda
