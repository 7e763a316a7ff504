// Packed weights (packed_layout.h) of the tasks of packed_stream.cuh.
#pragma once

#include <cstdint>

#include "kernels/cuda/experts/expert_args.cuh"
#include "kernels/cuda/experts/stream_tasks.cuh"
#include "kernels/cuda/packed/packed_layout.h"
#include "kernels/cuda/packed/slice_ring.cuh"

namespace eta::cuda::stream {

using packed::Slice;

inline constexpr int kTileWarps = kWarps / 2;
inline constexpr int kSlots = 3;
inline constexpr int kSlotBytes = 2 * static_cast<int>(ChunkBytes(PackedType::kInt8));
// Of the rings, in the thread block's dynamic shared memory, where it begins.
template <bool kPacked>
inline constexpr int kRingBytes = kPacked ? kWarps* kSlots* kSlotBytes : 0;

// The tile of tile `half` of a task, and the part that it is of.
template <bool kSwiGlu, typename Tasks>
struct TileOf {
  const ExpertPart& part;
  int32_t tile;
  bool exists;

  __device__ __forceinline__ TileOf(const ExpertArgs& args, const Tasks& task, int32_t half)
      : part(args.parts[kSwiGlu ? half : 0]),
        tile(kSwiGlu ? task.tile() : 2 * task.tile() + half),
        exists(tile < static_cast<int32_t>(Tiles(args.channels))) {}
};

// The chunks that the warp multiplies of a task.
template <bool kSwiGlu, typename Tasks>
__device__ __forceinline__ Slice SliceOf(const ExpertArgs& args, const Tasks& task) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const TileOf<kSwiGlu, Tasks> own(args, task, warp / kTileWarps);
  const auto chunks = static_cast<int32_t>(Chunks(args.k));
  const int32_t each = (chunks + kTileWarps - 1) / kTileWarps;
  const std::byte* tiles = args.weights + task.expert() * args.stride + own.part.tiles;
  Slice slice =
      packed::SliceOfTile(own.part.type, tiles, own.tile, chunks, warp % kTileWarps, each);
  if (!own.exists) slice.count = 0;
  return slice;
}

// All tasks of the thread block, as packed::SliceRing takes them.
template <bool kSwiGlu, typename Tasks>
struct TaskWalk {
  const ExpertArgs& args;
  Tasks tasks;

  __device__ __forceinline__ bool done() const { return tasks.done(); }
  __device__ __forceinline__ void Advance() { tasks.Advance(); }
  __device__ __forceinline__ Slice Own() const { return SliceOf<kSwiGlu>(args, tasks); }
};

template <bool kSwiGlu, typename Tasks>
using TaskRing = packed::SliceRing<TaskWalk<kSwiGlu, Tasks>, kSlots, kSlotBytes>;

}  // namespace eta::cuda::stream
