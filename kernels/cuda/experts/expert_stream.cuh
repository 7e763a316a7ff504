// The products of few places, whose weights stream from memory: memory binds, as in row_product.cu,
// whose loads and tiles these are. A task is 16 channels of one expert, with SwiGlu 8 of the gate
// and as many others, for up to 8 or 16 of its places. The 8 warps of a thread block share K, and
// weights are kDepth groups ahead of the tensor cores. A place's sum runs in an order that K alone
// fixes, whatever its task is. stream_tasks.cuh says what tasks are.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/experts/expert_args.cuh"
#include "kernels/cuda/experts/stream_tasks.cuh"
#include "kernels/cuda/rows/product_tile.cuh"

namespace eta::cuda::stream {

using product::kDepth;
using product::kGroup;
using product::kLoads;

// A warp's groups of K in their order: those of a task, then those of the next one. All warps have
// equally many, and what is beyond K is zero.
template <bool kSwiGlu, typename Tasks>
class Walk {
 public:
  __device__ Walk(const ExpertArgs& args, const Tasks& first)
      : tasks(first), groups_((args.k + kGroup * kWarps - 1) / (kGroup * kWarps)) {
    FindWeights(args);
  }

  __device__ bool begins_task() const { return group_ == 0; }
  __device__ bool ends_task() const { return group_ == groups_ - 1; }
  // The first of the lane's elements.
  __device__ int32_t k() const {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    return (group_ * kWarps + thread / 32) * kGroup + thread % 4 * 8;
  }
  // The weights of fragment row r + 8 * half.
  __device__ const std::byte* weights(int half) const { return half == 0 ? first_ : second_; }
  __device__ void Advance(const ExpertArgs& args) {
    if (++group_ < groups_) return;
    group_ = 0;
    tasks.Advance();
    FindWeights(args);
  }

  Tasks tasks;

 private:
  // Channels that do not exist read the last one.
  __device__ void FindWeights(const ExpertArgs& args) {
    if (tasks.done()) return;
    const int32_t all = kSwiGlu ? 2 * args.channels : args.channels;
    const int32_t channel =
        tasks.tile() * kChannels<kSwiGlu> + static_cast<int32_t>(threadIdx.x % 32 / 4);
    const int32_t first = min(channel, args.channels - 1);
    const int32_t second = kSwiGlu ? first + args.channels : min(channel + 8, args.channels - 1);
    const std::byte* expert = args.weights + int64_t{tasks.expert()} * all * args.k * 2;
    first_ = expert + int64_t{first} * args.k * 2;
    second_ = expert + int64_t{second} * args.k * 2;
  }

  int32_t groups_;
  int32_t group_ = 0;
  const std::byte* first_ = nullptr;
  const std::byte* second_ = nullptr;
};

using Group = uint4[2][kLoads];

template <bool kSwiGlu, typename Tasks>
__device__ __forceinline__ void Load(const ExpertArgs& args, Walk<kSwiGlu, Tasks>& walk,
                                     Group& to) {
  if (walk.tasks.done()) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int32_t k = walk.k() + 32 * j;
      to[half][j] = k < args.k ? LoadWeights(walk.weights(half) + int64_t{k} * 2) : uint4{};
    }
  }
  walk.Advance(args);
}

// Adds a group's products to the sums of the first kUsed columns.
template <typename T, int kUsed, int kColumns>
__device__ __forceinline__ void MultiplyGroup(const ExpertArgs& args, int32_t first_k,
                                              const Group& weights,
                                              const std::byte* const (&rows)[kColumns],
                                              float (&sums)[kColumns][4]) {
  float used[kUsed][4];
#pragma unroll
  for (int i = 0; i < 4 * kUsed; ++i) used[i / 4][i % 4] = sums[i / 4][i % 4];
  constexpr int kTogether = kUsed == 1 ? kLoads : 1;  // as many as registers hold
#pragma unroll
  for (int first = 0; first < kLoads; first += kTogether) {
    uint4 x[kTogether][kUsed];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int32_t k = first_k + 32 * (first + j);
#pragma unroll
      for (int column = 0; column < kUsed; ++column) {
        x[j][column] = rows[column] != nullptr && k < args.k
                           ? *reinterpret_cast<const uint4*>(rows[column] + int64_t{k} * 2)
                           : uint4{};
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      product::Multiply<T>(weights[0][first + j], weights[1][first + j], x[j], used);
    }
  }
#pragma unroll
  for (int i = 0; i < 4 * kUsed; ++i) sums[i / 4][i % 4] = used[i / 4][i % 4];
}

// MultiplyTasks (stream_tasks.cuh) with weights of 16 bits.
template <typename T, bool kSwiGlu, int kColumns, typename Tasks, typename Begin, typename Finish>
__device__ __forceinline__ void MultiplyWide(const ExpertArgs& args, const Tasks& tasks,
                                             Sums<kColumns>& shared, Begin&& begin,
                                             Finish&& finish) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  Group groups[kDepth];
  Walk<kSwiGlu, Tasks> loading(args, tasks);
#pragma unroll
  for (int d = 0; d < kDepth; ++d) Load(args, loading, groups[d]);
  begin();

  Walk<kSwiGlu, Tasks> walk(args, tasks);
  int32_t num_tasks = 0;
  int32_t num_sums = 0;
  Rows<kColumns> rows = {};
  float sums[kColumns][4] = {};
  while (!walk.tasks.done()) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (walk.tasks.done()) break;
      if (walk.begins_task()) FindRows<kColumns>(args, walk.tasks, rows);
      const int used = kColumns > 1 && walk.tasks.count() > 8 ? kColumns : 1;
      if (used == 1) {
        MultiplyGroup<T, 1>(args, walk.k(), groups[d], rows, sums);
      } else {
        MultiplyGroup<T, kColumns>(args, walk.k(), groups[d], rows, sums);
      }
      Load(args, loading, groups[d]);
      if (walk.ends_task()) {
        auto& of_warps = shared[num_tasks++ % 2];
#pragma unroll
        for (int i = 0; i < 4 * kColumns; ++i) {
          if (i < 4 * used) of_warps[warp][i][lane] = sums[i / 4][i % 4];
          sums[i / 4][i % 4] = 0.0f;
        }
        __syncthreads();
        if (warp == num_sums % kWarps) {
#pragma unroll
          for (int column = 0; column < kColumns; ++column) {
            if (column >= used) break;
            float totals[4] = {};
#pragma unroll
            for (int w = 0; w < kWarps; ++w) {
#pragma unroll
              for (int i = 0; i < 4; ++i) totals[i] += of_warps[w][4 * column + i][lane];
            }
            finish(walk.tasks, 0, column, totals);
          }
        }
        if (walk.tasks.ends_sum()) ++num_sums;
      }
      walk.Advance(args);
    }
  }
}

}  // namespace eta::cuda::stream
