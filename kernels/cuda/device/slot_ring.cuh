// A warp's ring of slots in shared memory. The copies fill one again once it was used. All lanes
// call these functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"

namespace eta::cuda {

template <int kSlots, int kSlotBytes>
class SlotRing {
 public:
  // Both are the warp's.
  __device__ SlotRing(std::byte* memory, Barrier* arrived) : memory_(memory), arrived_(arrived) {}

  // Calls bring(slot) for every slot.
  template <typename Bring>
  __device__ __forceinline__ void Start(Bring&& bring) const {
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) InitBarrier(&arrived_[slot], kCopyArrivals);
      PublishBarriers();
    }
    __syncwarp();
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) bring(slot);
  }
  __device__ __forceinline__ void Copy(int32_t slot, const std::byte* from, uint32_t bytes) const {
    ExpectBytes(&arrived_[slot], bytes);
    CopyTile(memory_ + slot * kSlotBytes, from, bytes, &arrived_[slot]);
    CommitCopies(&arrived_[slot]);
  }
  // Waits for the slot at hand.
  __device__ __forceinline__ const std::byte* Await() const {
    Wait(&arrived_[at_.stage], at_.phase);
    return Slot();
  }
  // The slot that Await() has waited for.
  __device__ __forceinline__ const std::byte* Slot() const {
    return memory_ + at_.stage * kSlotBytes;
  }
  // Goes on to the next slot, and calls bring(slot) for the one that was used.
  template <typename Bring>
  __device__ __forceinline__ void Release(Bring&& bring) {
    __syncwarp();
    bring(at_.stage);
    at_.Advance();
  }

 private:
  std::byte* memory_;
  Barrier* arrived_;
  RingPlace<kSlots> at_;
};

}  // namespace eta::cuda
