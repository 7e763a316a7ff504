// MultiplyExperts for decode steps: out [R k, N] = x [R k, K] * weight of the place's expert
// [N, K]^T, with SwiGlu behind.
//
// Memory binds, as in row_product.cu, whose loads and tiles these are: a task is 16 channels of one
// expert for up to 16 of its places, the 8 warps of a thread block share K, and weights are kDepth
// groups ahead of the tensor cores. Here every warp also finds its tasks. The weights of an expert
// with more places come from memory for the first 16, for the others from L2. A place's sum runs in
// an order that K alone fixes.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/experts/expert_args.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/experts/hit_list.cuh"
#include "kernels/cuda/rows/product_tile.cuh"

namespace eta::cuda {
namespace few_places {
namespace {

using product::kDepth;
using product::kGroup;
using product::kLoads;
using product::kThreads;
using product::kWarps;

constexpr int kCtasPerSm = 2;
constexpr int kColumns = 2;  // of 8 places each
constexpr int32_t kPlaces = 8 * kColumns;

// Of a task; with SwiGlu the gate's, and as many others.
template <bool kSwiGlu>
constexpr int32_t kChannels = kSwiGlu ? 8 : 16;

template <bool kSwiGlu>
__host__ __device__ constexpr TaskCut CutOf(int32_t channels) {
  return {(channels + kChannels<kSwiGlu> - 1) / kChannels<kSwiGlu>, kPlaces};
}

// A warp's groups of K in their order: those of a task, then those of the next one. All warps have
// equally many, and what is beyond K is zero.
template <bool kSwiGlu>
class Walk {
 public:
  __device__ Walk(const ExpertArgs& args, const HitExpert* hits, int32_t num_hits)
      : tasks(hits, num_hits, CutOf<kSwiGlu>(args.channels)),
        groups_((args.k + kGroup * kWarps - 1) / (kGroup * kWarps)) {
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

  TaskWalk tasks;

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

template <bool kSwiGlu>
__device__ __forceinline__ void Load(const ExpertArgs& args, Walk<kSwiGlu>& walk, Group& to) {
  if (walk.tasks.done()) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int32_t k = walk.k() + 32 * j;
      to[half][j] =
          k < args.k ? product::LoadWeights(walk.weights(half) + int64_t{k} * 2) : uint4{};
    }
  }
  walk.Advance(args);
}

// Where the lane's rows of x are: of place lane / 4 of the task's, and of the eighth behind it;
// null where the task has none.
__device__ __forceinline__ void FindRows(const ExpertArgs& args, const TaskWalk& task,
                                         const std::byte* (&x)[kColumns]) {
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    const auto i = static_cast<int32_t>(column * 8 + threadIdx.x % 32 / 4);
    x[column] = nullptr;
    if (i >= task.count()) continue;
    const int32_t place = task.place() + i;
    const int32_t row = args.rows != nullptr ? args.rows[place] : place;
    x[column] = args.x + row * args.x_stride * 2;
  }
}

using Sums = float[2][kWarps][4 * kColumns][32];  // of two tasks, in turns

// Adds up the warps' sums of a task and stores the result. The `count`-th task is one warp's work;
// meanwhile the others go on.
template <typename T, bool kSwiGlu>
__device__ __forceinline__ void Finish(const ExpertArgs& args, const TaskWalk& task, int32_t count,
                                       Sums& shared, float (&sums)[kColumns][4]) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  auto& of_warps = shared[count % 2];
  const int used = task.count() > 8 ? 4 * kColumns : 4;
#pragma unroll
  for (int i = 0; i < 4 * kColumns; ++i) {
    if (i < used) of_warps[warp][i][lane] = sums[i / 4][i % 4];
    sums[i / 4][i % 4] = 0.0f;
  }
  __syncthreads();
  if (warp != count % kWarps) return;
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    if (4 * column >= used) break;
    float total[4] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
#pragma unroll
      for (int i = 0; i < 4; ++i) total[i] += of_warps[w][4 * column + i][lane];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool second = i >= 2;
      const int32_t channel =
          task.tile() * kChannels<kSwiGlu> + lane / 4 + (second && !kSwiGlu ? 8 : 0);
      const int32_t index = column * 8 + lane % 4 * 2 + i % 2;
      if (channel >= args.channels || index >= task.count()) continue;
      const int64_t place = task.place() + index;
      StoreProduct<T>(args, place, channel + (second && kSwiGlu ? args.channels : 0), total[i]);
      if (!kSwiGlu || second) continue;
      StoreActivated<T>(args, place, channel, total[i], total[(i + 2) % 4]);
    }
  }
}

template <typename T, bool kSwiGlu>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    Kernel(const __grid_constant__ ExpertArgs args) {
  extern __shared__ __align__(16) std::byte memory[];
  __shared__ Sums shared_sums;
  auto* hits = reinterpret_cast<HitExpert*>(memory);
  if (!args.choice_is_old) WaitForPrevious();
  const int32_t num_hits =
      ListHits(args.place_end, args.num_experts, CutOf<kSwiGlu>(args.channels), hits);
  Group groups[kDepth];
  Walk<kSwiGlu> loading(args, hits, num_hits);
#pragma unroll
  for (int d = 0; d < kDepth; ++d) Load(args, loading, groups[d]);
  if (args.choice_is_old) WaitForPrevious();
  AllowNext();

  Walk<kSwiGlu> walk(args, hits, num_hits);
  int32_t count = 0;
  const std::byte* rows[kColumns] = {};
  float sums[kColumns][4] = {};
  while (!walk.tasks.done()) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (walk.tasks.done()) break;
      if (walk.begins_task()) FindRows(args, walk.tasks, rows);
      const auto load_x = [&](int column, int32_t k) {
        return rows[column] != nullptr && k < args.k
                   ? *reinterpret_cast<const uint4*>(rows[column] + int64_t{k} * 2)
                   : uint4{};
      };
      if (walk.tasks.count() > 8) {
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
          const uint4 x[kColumns] = {load_x(0, walk.k() + 32 * j), load_x(1, walk.k() + 32 * j)};
          product::Multiply<T>(groups[d][0][j], groups[d][1][j], x, sums);
        }
      } else {
        uint4 x[kLoads][1];
#pragma unroll
        for (int j = 0; j < kLoads; ++j) x[j][0] = load_x(0, walk.k() + 32 * j);
        float first[1][4] = {{sums[0][0], sums[0][1], sums[0][2], sums[0][3]}};
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
          product::Multiply<T>(groups[d][0][j], groups[d][1][j], x[j], first);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[0][i] = first[0][i];
      }
      Load(args, loading, groups[d]);
      if (walk.ends_task()) {
        Finish<T, kSwiGlu>(args, walk.tasks, count++, shared_sums, sums);
      }
      walk.Advance(args);
    }
  }
}

template <typename T, bool kSwiGlu>
void LaunchKernel(Device& device, const ExpertArgs& args, int64_t most_tasks) {
  const int64_t resident = int64_t{device.num_sms()} * kCtasPerSm;
  Launch(device, "product of experts",
         {.grid = static_cast<unsigned>(std::min(most_tasks, resident)),
          .block = kThreads,
          .shared_bytes = HitListBytes(args.num_experts)},
         Kernel<T, kSwiGlu>, args);
}

// Steps with more places to an expert, and more rows, are tiles of tensor cores' full width.
constexpr int64_t kFewRows = 64;
constexpr int64_t kFewPlacesOfExpert = 16;

}  // namespace
}  // namespace few_places

bool MultiplyFewPlaces(const Context& context, const ExpertProduct& product) {
  using namespace few_places;  // NOLINT(google-build-using-namespace)
  const int64_t places = product.out.rows;
  const int64_t experts = product.weights.num_experts;
  if (places > kFewRows * product.choice.per_row && places > kFewPlacesOfExpert * experts) {
    return false;
  }
  const ExpertArgs args = MakeExpertArgs(product);
  const auto launch = [&](auto element, auto swiglu) {
    using T = decltype(element);
    const int64_t chunks = std::min(places, places / kPlaces + experts);
    LaunchKernel<T, swiglu()>(context.device, args, chunks * CutOf<swiglu()>(args.channels).tiles);
  };
  const auto launch_for = [&](auto element) {
    if (args.activated != nullptr) return launch(element, std::true_type());
    launch(element, std::false_type());
  };
  if (product.weights.dtype == DType::kFloat16) {
    launch_for(Half{});
  } else {
    launch_for(BFloat16{});
  }
  return true;
}

}  // namespace eta::cuda
