// The tasks of products of few places, and how they end; expert_stream.cuh and packed_stream.cuh do
// what is between.
//
// The tasks of a thread block, in their order, are a class that has
//
//   done(), Advance()
//   tile(), expert()    which channels, whose weights
//   place(), count()    the first place, and how many follow it
//   row(args, i)        the row of x of the i-th place
//   ends_sum()          no task after it adds to what it finishes
//
// MultiplyTasks multiplies all of them. begin() is called when the first weights are on their way:
// x may be written till then. finish(task, part, column, totals) gets the totals of a task by parts
// of its channels and by columns of 8 places. One warp calls it, the same for all tasks up to one
// that ends a sum.
#pragma once

#include <cstdint>

#include "kernels/cuda/experts/expert_args.cuh"
#include "kernels/cuda/rows/product_tile.cuh"

namespace eta::cuda::stream {

using product::kThreads;
using product::kWarps;

inline constexpr int kCtasPerSm = 2;

// Of a part.
template <bool kSwiGlu>
inline constexpr int32_t kChannels = kSwiGlu ? 8 : 16;

// Of a task. One of packed weights has two tiles of 16 channels.
template <bool kPacked>
inline constexpr int32_t kParts = kPacked ? 2 : 1;

template <bool kSwiGlu, bool kPacked>
__host__ __device__ constexpr int32_t NumTiles(int32_t channels) {
  constexpr int32_t kAll = kChannels<kSwiGlu> * kParts<kPacked>;
  return (channels + kAll - 1) / kAll;
}

template <int kColumns>
using Sums = float[2][kWarps][4 * kColumns][32];  // of two tasks, in turns

// Calls visit(i, index, channel) for the sums of a part and a column that this lane holds and that
// exist: place `index` of the task, and with SwiGlu the gate's channel alone.
template <bool kSwiGlu, bool kPacked, typename Tasks, typename Visit>
__device__ __forceinline__ void ForSums(const ExpertArgs& args, const Tasks& task, int part,
                                        int column, Visit&& visit) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t first = (task.tile() * kParts<kPacked> + part) * kChannels<kSwiGlu>;
#pragma unroll
  for (int i = 0; i < (kSwiGlu ? 2 : 4); ++i) {
    const int32_t channel = first + lane / 4 + i / 2 * 8;
    const int32_t index = column * 8 + lane % 4 * 2 + i % 2;
    if (channel < args.channels && index < task.count()) visit(i, index, channel);
  }
}

// Stores what the finishing warp has of a part and a column, and SwiGlu of it.
template <typename T, bool kSwiGlu, bool kPacked, typename Tasks>
__device__ __forceinline__ void StoreTotals(const ExpertArgs& args, const Tasks& task, int part,
                                            int column, const float (&totals)[4]) {
  ForSums<kSwiGlu, kPacked>(args, task, part, column, [&](int i, int32_t index, int32_t channel) {
    StoreSums<T, kSwiGlu>(args, task.expert(), task.place() + index, channel, totals[i],
                          kSwiGlu ? totals[i + 2] : 0.0f);
  });
}

// The rows of x of the lane's places, of each column; null: there is none.
template <int kColumns>
using Rows = const std::byte* [kColumns];

template <int kColumns, typename Tasks>
__device__ __forceinline__ void FindRows(const ExpertArgs& args, const Tasks& task,
                                         Rows<kColumns>& rows) {
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    const int32_t i = column * 8 + static_cast<int32_t>(threadIdx.x % 32) / 4;
    rows[column] = nullptr;
    if (i < task.count()) rows[column] = args.x + task.row(args, i) * args.x_stride * 2;
  }
}

}  // namespace eta::cuda::stream
