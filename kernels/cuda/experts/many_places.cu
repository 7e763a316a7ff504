// MultiplyExperts for steps of many rows, as of prompts: out [R k, N] = x [R k, K] * weight of the
// place's expert [N, K]^T, with SwiGlu behind.
//
// Tensor cores bind. A task is a tile of kM of an expert's places and 128 channels, with SwiGlu 64
// of the gate's and as many others. A thread block takes tasks in turns: rows of x, each from where
// it is, and weights go through a ring of kStages copies of 64 elements of K (place_tiles.cuh).
// Chunks of an expert's places come one after the other, so that all but the first find its weights
// in L2.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/experts/expert_args.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/experts/hit_list.cuh"
#include "kernels/cuda/experts/place_tiles.cuh"

namespace eta::cuda {
namespace many_places {
namespace {

using places::ChunkAt;
using places::kChunks;
using places::kN;
using places::kStageBytes;
using places::kStep;

constexpr int kThreads = 256;
constexpr int kCtasPerSm = 2;
constexpr int kStages = 3;
constexpr int kRowsAtOnce = kThreads / kChunks;

#ifdef ETA_CUDA_SM90A
constexpr bool kHasWgmma = true;
#else
constexpr bool kHasWgmma = false;
#endif

// Copies 16 bytes, or fills with zeros.
__device__ __forceinline__ void CopyOrZero(uint32_t shared, const std::byte* global, bool copies) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(copies ? 16 : 0)
               : "memory");
}

template <bool kSwiGlu>
__host__ __device__ constexpr TaskCut CutOf(int32_t channels, int32_t places) {
  constexpr int32_t kChannels = kSwiGlu ? kN / 2 : kN;
  return {(channels + kChannels - 1) / kChannels, places};
}

// The channel of a task's row of weights.
template <typename Tile, bool kSwiGlu>
__device__ __forceinline__ int32_t ChannelOf(int32_t tile, int32_t row) {
  return kSwiGlu ? tile * (kN / 2) + Tile::Gates::Channel(row) : tile * kN + row;
}

// The rows that a thread copies a chunk of: every kRowsAtOnce-th of a stage.
template <typename Tile, int kM, bool kSwiGlu>
class Sources {
 public:
  __device__ Sources(const ExpertArgs& args, const TaskWalk& task) : k_(args.k) {
    const int32_t first = static_cast<int32_t>(threadIdx.x) / kChunks;
#pragma unroll
    for (int i = 0; i < kM / kRowsAtOnce; ++i) {
      const int32_t index = first + i * kRowsAtOnce;
      x_[i] = nullptr;
      if (index >= task.count()) continue;
      const int32_t place = task.place() + index;
      const int32_t row = args.rows != nullptr ? args.rows[place] : place;
      x_[i] = args.x + row * args.x_stride * 2;
    }
    const int64_t all = kSwiGlu ? 2 * args.channels : args.channels;
    const std::byte* expert = args.weights + task.expert() * all * args.k * 2;
#pragma unroll
    for (int i = 0; i < kN / kRowsAtOnce; ++i) {
      const int32_t row = first + i * kRowsAtOnce;
      // Channels that do not exist read the last one.
      const int32_t channel = min(ChannelOf<Tile, kSwiGlu>(task.tile(), row), args.channels - 1);
      const int64_t from =
          kSwiGlu && !Tile::Gates::IsGate(row) ? int64_t{channel} + args.channels : channel;
      weights_[i] = expert + from * args.k * 2;
    }
  }

  // Starts the copies of elements kStep * step .. of K. Rows of places that do not exist stay as
  // they are: nothing that is stored comes of them.
  __device__ void Copy(int32_t step, std::byte* stage) const {
    const int32_t first = static_cast<int32_t>(threadIdx.x) / kChunks;
    const int32_t chunk = static_cast<int32_t>(threadIdx.x) % kChunks;
    const int32_t k = step * kStep + chunk * 8;
    const bool exists = k < k_;
    const int64_t from = exists ? int64_t{k} * 2 : 0;
    const uint32_t to = SharedAddress(stage);
#pragma unroll
    for (int i = 0; i < kM / kRowsAtOnce; ++i) {
      if (x_[i] == nullptr) continue;
      CopyOrZero(to + ChunkAt(first + i * kRowsAtOnce, chunk), x_[i] + from, exists);
    }
#pragma unroll
    for (int i = 0; i < kN / kRowsAtOnce; ++i) {
      CopyOrZero(to + ChunkAt(kM + first + i * kRowsAtOnce, chunk), weights_[i] + from, exists);
    }
  }

 private:
  int32_t k_;
  const std::byte* x_[kM / kRowsAtOnce];
  const std::byte* weights_[kN / kRowsAtOnce];
};

template <typename T, bool kSwiGlu, typename Tile>
__device__ __forceinline__ void Store(const ExpertArgs& args, const TaskWalk& task,
                                      const Tile& tile) {
  tile.template ForSums<kSwiGlu>([&](int32_t index, int32_t row, float sum, float met) {
    const int32_t channel = ChannelOf<Tile, kSwiGlu>(task.tile(), row);
    if (index >= task.count() || channel >= args.channels) return;
    StoreSums<T, kSwiGlu>(args, task.expert(), task.place() + index, channel, sum, met);
  });
}

template <typename T, int kM, bool kSwiGlu, typename Tile>
__device__ __forceinline__ void MultiplyPlaces(const ExpertArgs& args, std::byte* memory) {
  auto* hits = reinterpret_cast<HitExpert*>(memory + kStages * kStageBytes<kM>);
  const auto stage = [&](int32_t step) { return memory + step % kStages * kStageBytes<kM>; };
  const TaskCut cut = CutOf<kSwiGlu>(args.channels, kM);
  const int32_t num_hits = ListHits(args.place_end, args.num_experts, cut, hits);
  const int32_t steps = (args.k + kStep - 1) / kStep;
  for (TaskWalk task(hits, num_hits, cut); !task.done(); task.Advance()) {
    const Sources<Tile, kM, kSwiGlu> sources(args, task);
#pragma unroll
    for (int32_t step = 0; step < kStages - 1; ++step) {
      if (step < steps) sources.Copy(step, stage(step));
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
      if (next < steps) sources.Copy(next, stage(next));
      CommitGroup();
      if (!Tile::kRunsBeside && multiplies) tile.Multiply(stage(step));
    }
    tile.Await();
    WaitGroups<0>();
    __syncthreads();  // all warps have read the last stages
    Store<T, kSwiGlu>(args, task, tile);
  }
}

template <typename T, int kM, bool kSwiGlu, bool kWgmma>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    Kernel(const __grid_constant__ ExpertArgs args) {
  extern __shared__ __align__(1024) std::byte memory[];
  WaitForPrevious();
  AllowNext();
  if constexpr (!kWgmma) {
    MultiplyPlaces<T, kM, kSwiGlu, places::WarpTile<T, kM>>(args, memory);
  } else {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    MultiplyPlaces<T, kM, kSwiGlu, places::GroupTile<T, kM>>(args, memory);
#else
    __trap();
#endif
  }
}

template <typename T, int kM, bool kSwiGlu>
bool LaunchKernel(Device& device, const ExpertArgs& args, int64_t places) {
  const size_t bytes = kStages * kStageBytes<kM> + HitListBytes(args.num_experts);
  if (bytes > device.shared_memory_per_block()) return false;
  const int64_t chunks = std::min(places, places / kM + args.num_experts);
  const int64_t most_tasks = chunks * CutOf<kSwiGlu>(args.channels, kM).tiles;
  const int64_t resident = int64_t{device.num_sms()} * kCtasPerSm;
  const LaunchShape shape = {.grid = static_cast<unsigned>(std::min(most_tasks, resident)),
                             .block = kThreads,
                             .shared_bytes = bytes};
  if constexpr (kHasWgmma) {
    if (device.compute_capability() == 90) {
      Launch(device, "product of experts", shape, Kernel<T, kM, kSwiGlu, true>, args);
      return true;
    }
  }
  Launch(device, "product of experts", shape, Kernel<T, kM, kSwiGlu, false>, args);
  return true;
}

// From so many places to an expert on tiles are long: of short ones less is filled up in vain.
constexpr int64_t kPlacesOfLongTiles = 96;

template <typename T, bool kSwiGlu>
bool LaunchFor(Device& device, const ExpertArgs& args, int64_t places) {
  if (places >= kPlacesOfLongTiles * args.num_experts &&
      LaunchKernel<T, 128, kSwiGlu>(device, args, places)) {
    return true;
  }
  return LaunchKernel<T, 64, kSwiGlu>(device, args, places);
}

template <typename T>
bool LaunchFor(Device& device, const ExpertArgs& args, int64_t places) {
  if (args.activated != nullptr) return LaunchFor<T, true>(device, args, places);
  return LaunchFor<T, false>(device, args, places);
}

}  // namespace
}  // namespace many_places

bool MultiplyManyPlaces(const Context& context, const ExpertProduct& product) {
  const ExpertArgs args = MakeExpertArgs(product);
  const int64_t places = product.out.rows;
  if (product.weights.dtype == DType::kFloat16) {
    return many_places::LaunchFor<Half>(context.device, args, places);
  }
  return many_places::LaunchFor<BFloat16>(context.device, args, places);
}

}  // namespace eta::cuda
