// A warp's chunks of packed weights (packed_layout.h) of one tile after another. Of each tile it
// has a slice of neighbours in memory. They come through a ring of its own, which runs on into the
// next tile's slice, so that a tile ends without a pause.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/slot_ring.cuh"
#include "kernels/cuda/packed/packed_layout.h"

namespace eta::cuda::packed {

// The chunks that a warp multiplies of a tile.
struct Slice {
  PackedType type;
  int32_t first;
  int32_t count;  // 0: it has none
  const std::byte* chunks;
};

// Slice `index` of a tile of `chunks` chunks, `each` to a slice.
__device__ __forceinline__ Slice SliceOfTile(PackedType type, const std::byte* tiles, int32_t tile,
                                             int32_t chunks, int32_t index, int32_t each) {
  const int32_t first = index * each;
  return {type, first, max(min(each, chunks - first), 0),
          tiles + (int64_t{tile} * chunks + first) * ChunkBytes(type)};
}

// Walk: the warp's tiles. done() tells whether none is left, Advance() goes on to the next one, and
// Own() is the slice of the one at hand.
template <typename Walk, int kSlots, int kSlotBytes>
class SliceRing {
 public:
  // Chunks that come together.
  static __host__ __device__ constexpr int SlotChunks(PackedType type) {
    return kSlotBytes / static_cast<int>(ChunkBytes(type));
  }

  // `memory` and `arrived` are the warp's.
  __device__ SliceRing(const Walk& walk, std::byte* memory, Barrier* arrived)
      : walk_(walk), slots_(memory, arrived) {
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
    walk_.Advance();
    Find();
  }
  // The first slice from the tile at hand on that has chunks.
  __device__ __forceinline__ void Find() {
    left_.count = 0;
    for (; !walk_.done(); walk_.Advance()) {
      left_ = walk_.Own();
      if (left_.count > 0) return;
    }
  }

  Walk walk_;
  Slice left_;  // to ask for
  SlotRing<kSlots, kSlotBytes> slots_;
};

}  // namespace eta::cuda::packed
