// The parts of product_chain.cu: who multiplies, the ring of weights, the rows of x, and the
// meeting of all thread blocks between two products.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/grid_barrier.cuh"
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
  // A warp that multiplies waits for the weights, and gives their room back once it has asked for
  // all of them. An arrival does not wait for loads that are on their way, and copies of the next
  // round could come before them. The fence orders loads too.
  __device__ __forceinline__ void Await() const {
    Wait(&full[place.stage], place.phase);
  }
  __device__ __forceinline__ void Release() {
    OrderWritesBeforeCopies();
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

// The stride of a row of x in shared memory, in elements. As kStagePitch has it.
__host__ __device__ constexpr int32_t ChainStride(int32_t k) {
  return (k + 63) / 64 * 64 + 8;
}

template <typename T>
__device__ __forceinline__ NormMemory<T> RowsOf(const Args& args, std::byte* memory) {
  return NormMemory<T>(args, memory, ChainStride(args.k));
}

// Brings the rows of x into shared memory. Ends with a barrier of the threads that multiply.
template <typename T>
__device__ __forceinline__ void CopyRows(const Args& args, T* rows) {
  const int32_t pieces = args.k / 8;
  const int32_t stride = ChainStride(args.k);
  for (int32_t row = 0; row < args.rows; ++row) {
    const std::byte* from = args.x + row * args.x_stride * 2;
    for (auto i = static_cast<int32_t>(threadIdx.x); i < pieces; i += kThreads) {
      CopyAsync<16>(rows + row * stride + i * 8, from + i * 16);
    }
  }
  CommitGroup();
  WaitGroups<0>();
  Multipliers::Sync();
}

// The sums of a tile: by warps. There are as many as warps, in turns.
//
// Warp i adds up every tile whose number is i modulo kWarps; the others only tell that theirs are
// there, and go on. None of them is kWarps tiles ahead, where it would write over what is read: all
// warps give each stage back, a tile has one at least, and the ring has fewer than kWarps.
struct TileSums {
  static_assert(kMostStages < kWarps);
  float4 of_warps[kWarps][kWarps][32];

  // Whether the calling warp now has the totals of tile `count`.
  __device__ __forceinline__ bool Add(int32_t count, const float (&sums)[4], float (&total)[4]) {
    const auto warp = static_cast<int32_t>(threadIdx.x / 32);
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    constexpr int kFirstName = 2;  // of the hardware's 16 barriers
    const int32_t turn = count % kWarps;
    float4(&own)[kWarps][32] = of_warps[turn];
    own[warp][lane] = {sums[0], sums[1], sums[2], sums[3]};
    if (warp != turn) {
      asm volatile("bar.arrive %0, %1;" ::"r"(kFirstName + turn), "n"(kThreads) : "memory");
      return false;
    }
    asm volatile("bar.sync %0, %1;" ::"r"(kFirstName + turn), "n"(kThreads) : "memory");
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 more = own[w][lane];
      total[0] += more.x;
      total[1] += more.y;
      total[2] += more.z;
      total[3] += more.w;
    }
    return true;
  }
};

// Between two products. The threads that multiply call it; what other thread blocks have written
// is there then, and the norm's weights of the next product are on their way.
template <typename T>
__device__ __forceinline__ void MeetOthers(uint32_t* word, const Args& next, std::byte* memory) {
  const GridBarrier barrier(word);
  Multipliers::Sync();  // results are written, and nobody reads the last product's rows
  GridBarrier::Round round{};
  if (threadIdx.x == 0) round = barrier.Arrive();
  if (next.norm_weight != nullptr) RowsOf<T>(next, memory).RequestFactors(next);
  if (threadIdx.x == 0) barrier.Wait(round);
  Multipliers::Sync();
}

}  // namespace eta::cuda::product
