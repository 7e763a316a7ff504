// Packed weights (packed_layout.h) of the tasks of packed_stream.cuh. A warp has a slice of a
// tile's chunks. They follow each other in memory and come through a ring of its own, as in
// packed_ring.cuh, which runs on into the next tasks.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/slot_ring.cuh"
#include "kernels/cuda/experts/expert_args.cuh"
#include "kernels/cuda/experts/stream_tasks.cuh"
#include "kernels/cuda/packed/packed_layout.h"

namespace eta::cuda::stream {

inline constexpr int kTileWarps = kWarps / 2;
inline constexpr int kSlots = 3;
inline constexpr int kSlotBytes = 2 * static_cast<int>(ChunkBytes(PackedType::kInt8));
// Chunks that come together.
__host__ __device__ constexpr int SlotChunks(PackedType type) {
  return kSlotBytes / static_cast<int>(ChunkBytes(type));
}
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
struct Slice {
  PackedType type;
  int32_t first;
  int32_t count;  // 0: it has none
  const std::byte* chunks;
};

template <bool kSwiGlu, typename Tasks>
__device__ __forceinline__ Slice SliceOf(const ExpertArgs& args, const Tasks& task) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const TileOf<kSwiGlu, Tasks> own(args, task, warp / kTileWarps);
  const auto chunks = static_cast<int32_t>(Chunks(args.k));
  const int32_t each = (chunks + kTileWarps - 1) / kTileWarps;
  const int32_t first = warp % kTileWarps * each;
  const int32_t count = own.exists ? max(min(each, chunks - first), 0) : 0;
  const std::byte* tiles = args.weights + task.expert() * args.stride + own.part.tiles;
  return {own.part.type, first, count,
          tiles + (int64_t{own.tile} * chunks + first) * ChunkBytes(own.part.type)};
}

// A warp's chunks of all tasks of the thread block, through a ring.
template <bool kSwiGlu, typename Tasks>
class TaskRing {
 public:
  // `memory` and `arrived` are the warp's.
  __device__ TaskRing(const ExpertArgs& args, const Tasks& first, std::byte* memory,
                      Barrier* arrived)
      : args_(args), tasks_(first), slots_(memory, arrived) {
    Find();
  }

  __device__ __forceinline__ void Start() {
    slots_.Start([this](int32_t slot) { Request(slot); });
  }
  // Waits for the next SlotChunks() chunks of a slice, or for the rest of it.
  __device__ __forceinline__ const std::byte* Await() const { return slots_.Await(); }
  // Starts to bring others in their place.
  __device__ __forceinline__ void Release() {
    slots_.Release([this](int32_t slot) { Request(slot); });
  }

 private:
  __device__ __forceinline__ void Request(int32_t slot) {
    if (left_.count == 0) return;
    const int32_t chunks = min(SlotChunks(left_.type), left_.count);
    const auto bytes = static_cast<uint32_t>(chunks * ChunkBytes(left_.type));
    slots_.Copy(slot, left_.chunks, bytes);
    left_.chunks += bytes;
    left_.count -= chunks;
    if (left_.count > 0) return;
    tasks_.Advance();
    Find();
  }
  // The first slice from the task at hand on that has chunks.
  __device__ __forceinline__ void Find() {
    left_.count = 0;
    for (; !tasks_.done(); tasks_.Advance()) {
      left_ = SliceOf<kSwiGlu>(args_, tasks_);
      if (left_.count > 0) return;
    }
  }

  const ExpertArgs& args_;
  Tasks tasks_;
  Slice left_;  // to ask for
  SlotRing<kSlots, kSlotBytes> slots_;
};

}  // namespace eta::cuda::stream
