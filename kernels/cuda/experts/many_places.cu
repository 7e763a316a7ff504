// MultiplyExperts for steps of many rows, as of prompts: out [R k, N] = x [R k, K] * weight of the
// place's expert [N, K]^T, with SwiGlu behind.
//
// Tensor cores bind. A task is a tile of kM of an expert's places and 128 channels, with SwiGlu 64
// of the gate's and as many others. A thread block takes tasks in turns: rows of x, each from where
// it is, and weights go through a ring of kStages copies of 64 elements of K, and 8 warps multiply
// kM / 2 x 32 each. Chunks of an expert's places come one after the other, so that all but the
// first find its weights in L2.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/experts/expert_args.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/experts/hit_list.cuh"

namespace eta::cuda {
namespace many_places {
namespace {

constexpr int kThreads = 256;
constexpr int kCtasPerSm = 2;
constexpr int kN = 128;    // rows of weights in a tile
constexpr int kStep = 64;  // elements of K in a stage
constexpr int kStages = 3;
constexpr int kChunks = 8;  // of 16 bytes in a row of a stage
constexpr int kRowBytes = 16 * kChunks;
constexpr int kRowsAtOnce = kThreads / kChunks;

// Rows of a stage: kM of x, then kN of weights. Chunks are swizzled by the row's low bits, so that
// the 8 rows of a load of matrices lie in different banks.
template <int kM>
constexpr size_t kStageBytes = static_cast<size_t>(kM + kN) * kRowBytes;

__device__ __forceinline__ int32_t ChunkAt(int32_t row, int32_t chunk) {
  return row * kRowBytes + (chunk ^ (row & 7)) * 16;
}

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

// The channel of a tile's row of weights. With SwiGlu the 32 of a warp are 16 of the gate and the
// 16 that they meet.
template <bool kSwiGlu>
__device__ __forceinline__ int32_t ChannelOf(int32_t tile, int32_t row) {
  return kSwiGlu ? tile * (kN / 2) + row / 32 * 16 + row % 16 : tile * kN + row;
}
template <bool kSwiGlu>
__device__ __forceinline__ bool IsGate(int32_t row) {
  return kSwiGlu && row % 32 < 16;
}

// The rows that a thread copies a chunk of: every kRowsAtOnce-th of a stage.
template <int kM, bool kSwiGlu>
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
      const int32_t channel = min(ChannelOf<kSwiGlu>(task.tile(), row), args.channels - 1);
      const int64_t from =
          kSwiGlu && !IsGate<kSwiGlu>(row) ? int64_t{channel} + args.channels : channel;
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

// What a warp adds up: kM / 2 places by 32 rows of weights.
template <int kM>
using Sums = float[kM / 32][4][4];

template <typename T, int kM>
__device__ __forceinline__ void MultiplyStage(const std::byte* stage, Sums<kM>& sums) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t first_x = warp % 2 * (kM / 2) + lane % 8 + lane / 8 % 2 * 8;
  const int32_t first_weight = kM + warp / 2 * 32 + lane % 8 + lane / 16 * 8;
  const uint32_t from = SharedAddress(stage);
#pragma unroll
  for (int inner = 0; inner < kStep / 16; ++inner) {
    uint32_t weights[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      LoadMatrices(weights[n], from + ChunkAt(first_weight + 16 * n, 2 * inner + lane / 8 % 2));
    }
#pragma unroll
    for (int m = 0; m < kM / 32; ++m) {
      uint32_t x[4];
      LoadMatrices(x, from + ChunkAt(first_x + 16 * m, 2 * inner + lane / 16));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        Mma<T>(sums[m][n], x, weights[n / 2][n % 2 * 2], weights[n / 2][n % 2 * 2 + 1]);
      }
    }
  }
}

template <typename T, int kM, bool kSwiGlu>
__device__ __forceinline__ void Store(const ExpertArgs& args, const TaskWalk& task,
                                      const Sums<kM>& sums) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
  for (int m = 0; m < kM / 32; ++m) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int32_t row = warp / 2 * 32 + n * 8 + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t index = warp % 2 * (kM / 2) + m * 16 + i / 2 * 8 + lane / 4;
        const int32_t channel = ChannelOf<kSwiGlu>(task.tile(), row + i % 2);
        if (index >= task.count() || channel >= args.channels) continue;
        const int64_t place = task.place() + index;
        const bool upper = kSwiGlu && n >= 2;
        StoreProduct<T>(args, place, channel + (upper ? args.channels : 0), sums[m][n][i]);
        if (!kSwiGlu || upper) continue;
        StoreActivated<T>(args, place, channel, sums[m][n][i], sums[m][(n + 2) % 4][i]);
      }
    }
  }
}

template <typename T, int kM, bool kSwiGlu>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    Kernel(const __grid_constant__ ExpertArgs args) {
  extern __shared__ __align__(128) std::byte memory[];
  auto* hits = reinterpret_cast<HitExpert*>(memory + kStages * kStageBytes<kM>);
  const auto stage = [&](int32_t step) { return memory + step % kStages * kStageBytes<kM>; };
  WaitForPrevious();
  AllowNext();
  const TaskCut cut = CutOf<kSwiGlu>(args.channels, kM);
  const int32_t num_hits = ListHits(args.place_end, args.num_experts, cut, hits);
  const int32_t steps = (args.k + kStep - 1) / kStep;
  for (TaskWalk task(hits, num_hits, cut); !task.done(); task.Advance()) {
    const Sources<kM, kSwiGlu> sources(args, task);
#pragma unroll
    for (int32_t step = 0; step < kStages - 1; ++step) {
      if (step < steps) sources.Copy(step, stage(step));
      CommitGroup();
    }
    // A warp may have no place.
    const bool multiplies = static_cast<int32_t>(threadIdx.x / 32 % 2) * (kM / 2) < task.count();
    Sums<kM> sums = {};
    for (int32_t step = 0; step < steps; ++step) {
      WaitGroups<kStages - 2>();
      __syncthreads();
      const int32_t next = step + kStages - 1;
      if (next < steps) sources.Copy(next, stage(next));
      CommitGroup();
      if (multiplies) MultiplyStage<T, kM>(stage(step), sums);
    }
    WaitGroups<0>();
    __syncthreads();  // all warps have read the last stages
    Store<T, kM, kSwiGlu>(args, task, sums);
  }
}

template <typename T, int kM, bool kSwiGlu>
bool LaunchKernel(Device& device, const ExpertArgs& args, int64_t places) {
  const size_t bytes = kStages * kStageBytes<kM> + HitListBytes(args.num_experts);
  if (bytes > device.shared_memory_per_block()) return false;
  const int64_t chunks = std::min(places, places / kM + args.num_experts);
  const int64_t most_tasks = chunks * CutOf<kSwiGlu>(args.channels, kM).tiles;
  const int64_t resident = int64_t{device.num_sms()} * kCtasPerSm;
  Launch(device, "product of experts",
         {.grid = static_cast<unsigned>(std::min(most_tasks, resident)),
          .block = kThreads,
          .shared_bytes = bytes},
         Kernel<T, kM, kSwiGlu>, args);
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
