// The products of few places, whose weights stream from memory: memory binds, as in row_product.cu,
// whose units and tiles these are. A task is 16 channels of one expert, with SwiGlu 8 of the gate
// and as many others, for up to 8 or 16 of its places. The 8 warps of a thread block share K.
// Weights are kUnits units ahead of the tensor cores, and x is one, across the ends of tasks. A
// place's sum runs in an order that K alone fixes, whatever its task is.
//
// The tasks of a thread block, in their order, are a class that has
//
//   done(), Advance()
//   tile(), expert()    which channels, whose weights
//   place(), count()    the first place, and how many follow it
//   row(args, i)        the row of x of the i-th place
//   ends_sum()          no task after it adds to what it finishes
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/experts/expert_args.cuh"
#include "kernels/cuda/rows/lane_ring.cuh"

namespace eta::cuda::stream {

using product::kGroup;
using product::kThreads;
using product::kUnitLoads;
using product::kUnitsOfGroup;
using product::kUnitWidth;
using product::kWarps;

inline constexpr int kCtasPerSm = 2;  // at most, as registers allow
inline constexpr int kUnits = 5;
using Ring = product::LaneRing<kUnits>;

// Of a task.
template <bool kSwiGlu>
inline constexpr int32_t kChannels = kSwiGlu ? 8 : 16;

template <bool kSwiGlu>
__host__ __device__ constexpr int32_t NumTiles(int32_t channels) {
  return (channels + kChannels<kSwiGlu> - 1) / kChannels<kSwiGlu>;
}

// A warp's units in their order: those of a task, then those of the next one. All warps have
// equally many, and what is beyond K is zero.
template <typename Tasks>
class Walk {
 public:
  __device__ Walk(const ExpertArgs& args, const Tasks& first)
      : tasks(first), units_((args.k + kGroup * kWarps - 1) / (kGroup * kWarps) * kUnitsOfGroup) {}

  __device__ bool begins_task() const { return unit_ == 0; }
  __device__ bool ends_task() const { return unit_ == units_ - 1; }
  // The first of the lane's elements.
  __device__ int32_t k() const {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t group = unit_ / kUnitsOfGroup;
    return (group * kWarps + thread / 32) * kGroup + unit_ % kUnitsOfGroup * kUnitWidth +
           thread % 4 * 8;
  }
  __device__ void Advance() {
    if (++unit_ < units_) return;
    unit_ = 0;
    tasks.Advance();
  }

  Tasks tasks;

 private:
  int32_t units_;
  int32_t unit_ = 0;
};

// Asks for weights.
template <bool kSwiGlu, typename Tasks>
class Loading {
 public:
  __device__ Loading(const ExpertArgs& args, const Tasks& first) : walk_(args, first) {
    FindWeights(args);
  }

  __device__ __forceinline__ void Request(const ExpertArgs& args, Ring& ring) {
    if (walk_.tasks.done()) return ring.RequestNothing();
    const int32_t first = walk_.k();
    ring.Request([&](int half, int j) -> const std::byte* {
      const int32_t k = first + 32 * j;
      return k < args.k ? weights_[half] + int64_t{k} * 2 : nullptr;
    });
    walk_.Advance();
    if (walk_.begins_task()) FindWeights(args);
  }

 private:
  // Channels that do not exist read the last one.
  __device__ __forceinline__ void FindWeights(const ExpertArgs& args) {
    const Tasks& task = walk_.tasks;
    if (task.done()) return;
    const int32_t all = kSwiGlu ? 2 * args.channels : args.channels;
    const int32_t channel =
        task.tile() * kChannels<kSwiGlu> + static_cast<int32_t>(threadIdx.x % 32 / 4);
    const int32_t first = min(channel, args.channels - 1);
    const int32_t second = kSwiGlu ? first + args.channels : min(channel + 8, args.channels - 1);
    const std::byte* expert = args.weights + int64_t{task.expert()} * all * args.k * 2;
    weights_[0] = expert + int64_t{first} * args.k * 2;
    weights_[1] = expert + int64_t{second} * args.k * 2;
  }

  Walk<Tasks> walk_;
  const std::byte* weights_[2] = {};  // of fragment rows r and r + 8
};

// Reads x, whose rows lie far apart.
template <int kColumns, typename Tasks>
class Fetching {
 public:
  using X = uint4[kUnitLoads][kColumns];

  __device__ Fetching(const ExpertArgs& args, const Tasks& first) : walk_(args, first) {
    FindRows(args);
  }

  // Reads what belongs to the next unit.
  __device__ __forceinline__ void Fetch(const ExpertArgs& args, X& x) {
    if (walk_.tasks.done()) return;
    const int32_t first = walk_.k();
#pragma unroll
    for (int j = 0; j < kUnitLoads; ++j) {
      const int32_t k = first + 32 * j;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        x[j][column] = rows_[column] != nullptr && k < args.k
                           ? *reinterpret_cast<const uint4*>(rows_[column] + int64_t{k} * 2)
                           : uint4{};
      }
    }
    walk_.Advance();
    if (walk_.begins_task()) FindRows(args);
  }

 private:
  __device__ __forceinline__ void FindRows(const ExpertArgs& args) {
    const Tasks& task = walk_.tasks;
    if (task.done()) return;
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const auto i = static_cast<int32_t>(column * 8 + threadIdx.x % 32 / 4);
      rows_[column] = i < task.count() ? args.x + task.row(args, i) * args.x_stride * 2 : nullptr;
    }
  }

  Walk<Tasks> walk_;
  const std::byte* rows_[kColumns] = {};
};

// Adds a unit's products to the sums of the first kUsed columns.
template <typename T, int kUsed, int kColumns>
__device__ __forceinline__ void MultiplyUnit(const product::Unit& weights,
                                             const uint4 (&x)[kUnitLoads][kColumns],
                                             float (&sums)[kColumns][4]) {
  float used[kUsed][4];
#pragma unroll
  for (int i = 0; i < 4 * kUsed; ++i) used[i / 4][i % 4] = sums[i / 4][i % 4];
#pragma unroll
  for (int j = 0; j < kUnitLoads; ++j) {
    uint4 own[kUsed];
#pragma unroll
    for (int column = 0; column < kUsed; ++column) own[column] = x[j][column];
    product::Multiply<T>(weights.low[j], weights.high[j], own, used);
  }
#pragma unroll
  for (int i = 0; i < 4 * kUsed; ++i) sums[i / 4][i % 4] = used[i / 4][i % 4];
}

template <int kColumns>
using Sums = float[2][kWarps][4 * kColumns][32];  // of two tasks, in turns

// Calls visit(i, index, channel) for the sums of a column that this lane holds and that exist:
// place `index` of the task, and with SwiGlu the gate's channel alone.
template <bool kSwiGlu, typename Tasks, typename Visit>
__device__ __forceinline__ void ForSums(const ExpertArgs& args, const Tasks& task, int column,
                                        Visit&& visit) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < (kSwiGlu ? 2 : 4); ++i) {
    const int32_t channel = task.tile() * kChannels<kSwiGlu> + lane / 4 + i / 2 * 8;
    const int32_t index = column * 8 + lane % 4 * 2 + i % 2;
    if (channel < args.channels && index < task.count()) visit(i, index, channel);
  }
}

// Stores what the finishing warp has of a column, and SwiGlu of it.
template <typename T, bool kSwiGlu, typename Tasks>
__device__ __forceinline__ void StoreTotals(const ExpertArgs& args, const Tasks& task, int column,
                                            const float (&totals)[4]) {
  ForSums<kSwiGlu>(args, task, column, [&](int i, int32_t index, int32_t channel) {
    const int64_t place = task.place() + index;
    const int32_t all = kSwiGlu ? 2 * args.channels : args.channels;
    const float total = WithBias(args, task.expert(), all, channel, totals[i]);
    StoreProduct<T>(args, place, channel, total);
    if constexpr (kSwiGlu) {
      const int32_t other = channel + args.channels;
      const float met = WithBias(args, task.expert(), all, other, totals[i + 2]);
      StoreProduct<T>(args, place, other, met);
      StoreActivated<T>(args, place, channel, total, met);
    }
  });
}

// Multiplies all tasks of the thread block. `memory`: Ring::kBytes for the weights. `begin` is
// called when the first weights are on their way: x may be written till then. finish(task, column,
// totals) gets the totals of a task by columns. One warp calls it, the same for all tasks up to one
// that ends a sum.
template <typename T, bool kSwiGlu, int kColumns, typename Tasks, typename Begin, typename Finish>
__device__ __forceinline__ void MultiplyTasks(const ExpertArgs& args, const Tasks& tasks,
                                              std::byte* memory, Sums<kColumns>& shared,
                                              Begin&& begin, Finish&& finish) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  Ring ring(memory);
  Loading<kSwiGlu, Tasks> loading(args, tasks);
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) loading.Request(args, ring);
  begin();

  Walk<Tasks> walk(args, tasks);
  Fetching<kColumns, Tasks> fetching(args, tasks);
  uint4 next[kUnitLoads][kColumns] = {};
  fetching.Fetch(args, next);
  int32_t num_tasks = 0;
  int32_t num_sums = 0;
  float sums[kColumns][4] = {};
  while (!walk.tasks.done()) {
    uint4 x[kUnitLoads][kColumns];
#pragma unroll
    for (int i = 0; i < kUnitLoads * kColumns; ++i) {
      x[i / kColumns][i % kColumns] = next[i / kColumns][i % kColumns];
    }
    fetching.Fetch(args, next);
    const product::Unit weights = ring.Take();
    const int used = kColumns > 1 && walk.tasks.count() > 8 ? kColumns : 1;
    if (used == 1) {
      MultiplyUnit<T, 1>(weights, x, sums);
    } else {
      MultiplyUnit<T, kColumns>(weights, x, sums);
    }
    loading.Request(args, ring);
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
          finish(walk.tasks, column, totals);
        }
      }
      if (walk.tasks.ends_sum()) ++num_sums;
    }
    walk.Advance();
  }
}

}  // namespace eta::cuda::stream
