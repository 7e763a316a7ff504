// What the kernels of chains of products share: who multiplies, the ring of weights, the meeting of
// all thread blocks between two products, and their launch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/grid_barrier.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/rows/chain_walk.h"
#include "kernels/cuda/rows/product_tile.cuh"
#include "kernels/cuda/rows/row_norm.cuh"

namespace eta::cuda::product {

// The last warp asks for weights.
inline constexpr int kChainThreads = kThreads + 32;

// The warps that multiply.
struct Multipliers {
  static __device__ __forceinline__ void Sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  }
};

// The ring of weights as one thread sees it.
template <int kStageBytes>
struct StageRing {
  std::byte* memory;
  Barrier* full;
  Barrier* empty;
  int32_t stages;
  ChainPlace place{};

  // One thread calls it, before a barrier of all.
  __device__ __forceinline__ void Initialise() const {
    for (int stage = 0; stage < kMostStages; ++stage) {
      InitBarrier(&full[stage], kCopyArrivals);
      InitBarrier(&empty[stage], kWarps);
    }
    PublishBarriers();
  }
  // The warp that asks for weights waits for room, then tells how many bytes will come.
  __device__ __forceinline__ void Expect(uint32_t bytes) const {
    Wait(&empty[place.stage], place.phase ^ 1);
    ExpectBytes(&full[place.stage], bytes);
    __syncwarp();
  }
  __device__ __forceinline__ void Copy([[maybe_unused]] int at,
                                       [[maybe_unused]] const std::byte* from,
                                       [[maybe_unused]] uint32_t bytes) const {
#if __CUDA_ARCH__ >= 900
    BulkCopyOnce(Stage() + at, from, bytes, &full[place.stage]);
#else
    __trap();
#endif
  }

  __device__ __forceinline__ std::byte* Stage() const {
    return memory + place.stage * kStageBytes;
  }
  // A warp that multiplies waits for the weights, and gives their room back once it has them.
  __device__ __forceinline__ void Await() const {
    Wait(&full[place.stage], place.phase);
  }
  __device__ __forceinline__ void Release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) Arrive(&empty[place.stage]);
    place.Advance(stages);
  }
};

// Calls visit(tile) for the thread block's tiles.
template <typename Visit>
__device__ __forceinline__ void ForTiles(const ChainPart& part, Visit&& visit) {
  const auto blocks = static_cast<int32_t>(gridDim.x);
  for (int32_t tile = part.FirstTile(static_cast<int32_t>(blockIdx.x), blocks); tile < part.tiles;
       tile += blocks) {
    visit(tile);
  }
}

// Between two products. The threads that multiply call it; what other thread blocks have written
// is there then, and the norm's weights of the next product are on their way.
template <typename T>
__device__ __forceinline__ void MeetOthers(uint32_t* word, const Args& next, std::byte* memory) {
  const GridBarrier barrier(word);
  Multipliers::Sync();  // results are written, and nobody reads the last product's rows
  GridBarrier::Round round{};
  if (threadIdx.x == 0) round = barrier.Arrive();
  if (next.norm_weight != nullptr) NormMemory<T>(next, memory).RequestFactors(next);
  if (threadIdx.x == 0) barrier.Wait(round);
  Multipliers::Sync();
}

// Whether each multiprocessor has room for a thread block. One that finds none would be waited for.
template <typename... Params>
bool FitsMultiprocessor(const LaunchShape& shape, void (*kernel)(Params...)) {
  int blocks = 0;
  const bool known = AllowSharedBytes(shape.shared_bytes, kernel) == cudaSuccess &&
                     cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                         &blocks, kernel, kChainThreads, shape.shared_bytes) == cudaSuccess;
  if (!known) cudaGetLastError();  // otherwise the next launch would report the error
  return known && blocks > 0;
}

// Launches `kernel` with `of_rows` bytes of shared memory for rows, and a ring of as many stages as
// the rest has room for. Returns false if these are too few, or there is no memory for the barrier.
// `fixed`: bytes that the kernel has anyway.
template <typename Chain>
bool LaunchChain(Context& context, Chain& chain, size_t of_rows, size_t fixed, size_t stage_bytes,
                 void (*kernel)(Chain)) {
  Device& device = context.device;
  of_rows = (of_rows + 127) / 128 * 128;
  const size_t memory = device.shared_memory_per_block();
  if (memory < of_rows + fixed + kLeastStages * stage_bytes) return false;
  const size_t stages = std::min<size_t>((memory - of_rows - fixed) / stage_bytes, kMostStages);
  const LaunchShape shape = {.grid = static_cast<unsigned>(device.num_sms()),
                             .block = kChainThreads,
                             .shared_bytes = of_rows + stages * stage_bytes};
  if (!FitsMultiprocessor(shape, kernel)) return false;
  chain.barrier = reinterpret_cast<uint32_t*>(
      context.scratch.Get(Scratch::Use::kGridBarrier, sizeof(uint32_t)));
  if (chain.barrier == nullptr) return false;
  chain.stages = static_cast<int32_t>(stages);
  chain.rings_at = static_cast<int32_t>(of_rows);
  Launch(device, "chain of products of few rows", shape, kernel, chain);
  return true;
}

}  // namespace eta::cuda::product
