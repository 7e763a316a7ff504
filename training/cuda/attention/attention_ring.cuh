// What the three attention kernels begin with: a ring of stages in shared memory, which the
// producer fills and the consumers empty. The forward kernel and that of the queries' gradients
// also share how a CTA's queries meet their keys.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "training/cuda/attention/attention_tile.cuh"
#include "training/cuda/attention/kernel_params.h"

namespace eta::training::cuda {

// A thread's view of the ring. Shape has kStages, kConsumers and kBarriers, the place of the
// barriers in the memory.
template <typename Shape>
struct Ring {
  std::byte* memory;   // aligned to the period of the swizzle
  uint32_t shared;     // its address
  Barrier* full;       // of each stage
  Barrier* empty;      // of each stage
  Barrier* held_full;  // of the tiles that the CTA holds from first to last
  int32_t warp;
  int32_t warpgroup;  // kConsumers: the producer's
  RingPlace<Shape::kStages> at;

  // All threads of the CTA, before anything else. What the kernel before wrote is there afterwards.
  __device__ __forceinline__ Ring() {
    extern __shared__ std::byte unaligned[];
    memory = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
    full = reinterpret_cast<Barrier*>(memory + Shape::kBarriers);
    empty = full + Shape::kStages;
    held_full = empty + Shape::kStages;
    shared = SharedAddress(memory);
    warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    warpgroup = warp / 4;
    if (threadIdx.x == 0) {
      for (int i = 0; i < Shape::kStages; ++i) {
        eta::cuda::InitBarrier(full + i, 1);
        eta::cuda::InitBarrier(empty + i, Shape::kConsumers * 4);
      }
      eta::cuda::InitBarrier(held_full, 1);
      eta::cuda::PublishBarriers();
    }
    __syncthreads();
    eta::cuda::WaitForPrevious();
    eta::cuda::AllowNext();
  }

  // A consumer's warp has read the stage.
  __device__ __forceinline__ void Release(int32_t stage) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) eta::cuda::Arrive(empty + stage);
  }
  // A consumer passes over the next stage.
  __device__ __forceinline__ void Skip() {
    eta::cuda::Wait(full + at.stage, at.phase);
    Release(at.stage);
    at.Advance();
  }
};

// The queries of a CTA of RowShape, and the tiles of keys that they attend to.
template <typename Shape>
struct QueryWork {
  int32_t global_head;  // in [0, B * HQ)
  int32_t sequence;
  int32_t head;
  int32_t first_query;
  int32_t tiles;

  __device__ __forceinline__ QueryWork(const HeadsShape& shape, const WorkOrder& order) {
    const Work work = WorkOf(order);
    global_head = work.head;
    sequence = work.head / shape.query_heads;
    head = work.head % shape.query_heads;
    first_query = (order.tiles - 1 - work.tile) * Shape::kTileRows;
    tiles = min(shape.tiles(), first_query / 64 + Shape::kConsumers);
  }
};

// The producer copies the keys and values of all tiles from `first_tile` on, the last tile first.
template <int kHeadDim, typename Shape>
__device__ __forceinline__ void ProduceKeys(Ring<Shape>& ring, const QueryWork<Shape>& work,
                                            const CUtensorMap& k, const CUtensorMap& v,
                                            int32_t kv_head, int32_t first_tile) {
  constexpr uint32_t kStageBytes = 2 * Shape::kTileBytes;
  for (int32_t tile = work.tiles - 1; tile >= first_tile; --tile, ring.at.Advance()) {
    Barrier* full = ring.full + ring.at.stage;
    eta::cuda::Wait(ring.empty + ring.at.stage, ring.at.phase ^ 1);
    Expect(full, kStageBytes);
    const uint32_t to = ring.shared + ring.at.stage * kStageBytes;
    CopyTile<kHeadDim>(to, k, kv_head, tile * 64, work.sequence, full);
    CopyTile<kHeadDim>(to + Shape::kTileBytes, v, kv_head, tile * 64, work.sequence, full);
  }
}

}  // namespace eta::training::cuda
