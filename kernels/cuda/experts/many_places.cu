// MultiplyExperts for steps of many rows, as of prompts: out [R k, N] = x [R k, K] * weight of the
// place's expert [N, K]^T, with SwiGlu behind.
//
// Tensor cores bind. A task is a tile of kM of an expert's places and 128 channels, with SwiGlu 64
// of the gate's and as many others. A thread block takes tasks in turns: rows of x, each from where
// it is, and weights go through a ring of kStages copies of 64 elements of K (place_tiles.cuh);
// packed weights are unpacked on their way (weight_tiles.cuh). Chunks of an expert's places come
// one after the other, so that all but the first find its weights in L2.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/experts/expert_args.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/experts/hit_list.cuh"
#include "kernels/cuda/experts/place_rows.cuh"
#include "kernels/cuda/experts/place_tiles.cuh"
#include "kernels/cuda/experts/weight_tiles.cuh"

namespace eta::cuda {
namespace many_places {
namespace {

using places::kN;
using places::kStageBytes;
using places::kStep;

constexpr int kCtasPerSm = 2;
constexpr int kStages = 3;

#ifdef ETA_CUDA_SM90A
constexpr bool kHasWgmma = true;
#else
constexpr bool kHasWgmma = false;
#endif

template <bool kSwiGlu>
__host__ __device__ constexpr TaskCut CutOf(int32_t channels, int32_t places) {
  constexpr int32_t kChannels = kSwiGlu ? kN / 2 : kN;
  return {(channels + kChannels - 1) / kChannels, places};
}

template <typename T, bool kSwiGlu, typename Tile>
__device__ __forceinline__ void Store(const ExpertArgs& args, const TaskWalk& task,
                                      const Tile& tile) {
  tile.template ForSums<kSwiGlu>([&](int32_t index, int32_t row, float sum, float met) {
    const int32_t channel = places::ChannelOf<Tile, kSwiGlu>(task.tile(), row);
    if (index >= task.count() || channel >= args.channels) return;
    StoreSums<T, kSwiGlu>(args, task.expert(), task.place() + index, channel, sum, met);
  });
}

template <typename T, int kM, bool kSwiGlu, bool kPacked, typename Tile>
__device__ __forceinline__ void MultiplyPlaces(const ExpertArgs& args, std::byte* memory) {
  using Weights = std::conditional_t<kPacked, places::WeightTiles<T, Tile, kM, kSwiGlu>,
                                     places::WeightRows<Tile, kM, kSwiGlu>>;
  auto* hits = reinterpret_cast<HitExpert*>(memory + kStages * kStageBytes<kM>);
  const auto stage = [&](int32_t step) { return memory + step % kStages * kStageBytes<kM>; };
  const TaskCut cut = CutOf<kSwiGlu>(args.channels, kM);
  const int32_t num_hits = ListHits(args.place_end, args.num_experts, cut, hits);
  const int32_t steps = (args.k + kStep - 1) / kStep;
  for (TaskWalk task(hits, num_hits, cut); !task.done(); task.Advance()) {
    const places::PlaceRows<kM> rows(args, task);
    Weights weights(args, task);
    const auto copy = [&](int32_t step) {
      rows.Copy(step, stage(step));
      weights.Copy(step, stage(step));
    };
#pragma unroll
    for (int32_t step = 0; step < kStages - 1; ++step) {
      if (step < steps) copy(step);
      CommitGroup();
    }
    const bool multiplies = Tile::Has(task.count());
    Tile tile;
    for (int32_t step = 0; step < steps; ++step) {
      WaitGroups<kStages - 2>();
      if (Tile::kRunsBeside) wgmma::PublishWrites();
      tile.Await();  // the stage that is copied to next is free
      __syncthreads();
      if (Tile::kRunsBeside && multiplies) tile.Multiply(stage(step));
      const int32_t next = step + kStages - 1;
      if (next < steps) copy(next);
      CommitGroup();
      if (!Tile::kRunsBeside && multiplies) tile.Multiply(stage(step));
    }
    tile.Await();
    WaitGroups<0>();
    __syncthreads();  // all warps have read the last stages
    Store<T, kSwiGlu>(args, task, tile);
  }
}

template <typename T, int kM, bool kSwiGlu, bool kPacked, bool kWgmma>
__global__ void __launch_bounds__(places::kThreads, kCtasPerSm)
    Kernel(const __grid_constant__ ExpertArgs args) {
  extern __shared__ __align__(1024) std::byte memory[];
  WaitForPrevious();
  AllowNext();
  if constexpr (!kWgmma) {
    MultiplyPlaces<T, kM, kSwiGlu, kPacked, places::WarpTile<T, kM>>(args, memory);
  } else {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    MultiplyPlaces<T, kM, kSwiGlu, kPacked, places::GroupTile<T, kM>>(args, memory);
#else
    __trap();
#endif
  }
}

template <typename T, int kM, bool kSwiGlu, bool kPacked>
bool LaunchKernel(Device& device, const ExpertArgs& args, int64_t places) {
  const size_t bytes = kStages * kStageBytes<kM> + HitListBytes(args.num_experts);
  if (bytes > device.shared_memory_per_block()) return false;
  const int64_t chunks = std::min(places, places / kM + args.num_experts);
  const int64_t most_tasks = chunks * CutOf<kSwiGlu>(args.channels, kM).tiles;
  const int64_t resident = int64_t{device.num_sms()} * kCtasPerSm;
  const LaunchShape shape = {.grid = static_cast<unsigned>(std::min(most_tasks, resident)),
                             .block = places::kThreads,
                             .shared_bytes = bytes};
  if constexpr (kHasWgmma) {
    if (device.compute_capability() == 90) {
      Launch(device, "product of experts", shape, Kernel<T, kM, kSwiGlu, kPacked, true>, args);
      return true;
    }
  }
  if constexpr (kPacked && kM > 64) {
    return false;  // unpacking takes the registers that long tiles need
  } else {
    Launch(device, "product of experts", shape, Kernel<T, kM, kSwiGlu, kPacked, false>, args);
    return true;
  }
}

// From so many places to an expert on tiles are long: of short ones less is filled up in vain.
constexpr int64_t kPlacesOfLongTiles = 96;

template <typename T, bool kSwiGlu, bool kPacked>
bool LaunchFor(Device& device, const ExpertArgs& args, int64_t places) {
  if (places >= kPlacesOfLongTiles * args.num_experts &&
      LaunchKernel<T, 128, kSwiGlu, kPacked>(device, args, places)) {
    return true;
  }
  return LaunchKernel<T, 64, kSwiGlu, kPacked>(device, args, places);
}

template <typename T, bool kPacked>
bool LaunchFor(Device& device, const ExpertArgs& args, int64_t places) {
  if (args.activated != nullptr) return LaunchFor<T, true, kPacked>(device, args, places);
  return LaunchFor<T, false, kPacked>(device, args, places);
}

template <typename T>
bool LaunchFor(Device& device, const ExpertProduct& product) {
  const ExpertArgs args = MakeExpertArgs(product);
  const int64_t places = product.out.rows;
  if (product.weights.packed()) return LaunchFor<T, true>(device, args, places);
  return LaunchFor<T, false>(device, args, places);
}

}  // namespace
}  // namespace many_places

bool MultiplyManyPlaces(const Context& context, const ExpertProduct& product) {
  if (product.weights.dtype == DType::kFloat16) {
    return many_places::LaunchFor<Half>(context.device, product);
  }
  return many_places::LaunchFor<BFloat16>(context.device, product);
}

}  // namespace eta::cuda
