// A barrier of all thread blocks of a kernel. All of them must be on the device at once, whatever
// else runs there.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace eta::cuda {

// One word of device memory, zero at first. Its highest bit turns when the last thread block has
// arrived, and nothing needs to be reset: a round adds 2^31 in all, whatever the grid.
class GridBarrier {
 public:
  struct Round {
    uint32_t before;
    uint32_t now;
  };

  __device__ explicit GridBarrier(uint32_t* word) : word_(word) {}

  // One thread of a thread block calls both functions. What the thread block has written before a
  // barrier of its threads, the other thread blocks see after Wait and a barrier of their threads.
  __device__ __forceinline__ Round Arrive() const {
    const uint32_t own = blockIdx.x == 0 ? kTurn - (gridDim.x - 1) : 1;
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(word_), "r"(own)
                 : "memory");
    return {before, before + own};
  }
  // A thread block that never comes is an error of the launch. A trap tells of it, where a loop
  // without end would take the device away.
  __device__ __forceinline__ void Wait(Round round) const {
    for (uint32_t polls = 0; ((round.now ^ round.before) & kTurn) == 0; ++polls) {
      if (polls == kMostPolls) __trap();
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(round.now) : "l"(word_) : "memory");
    }
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  }

 private:
  static constexpr uint32_t kTurn = uint32_t{1} << 31;
  static constexpr uint32_t kMostPolls = uint32_t{1} << 24;  // some seconds

  uint32_t* word_;
};

}  // namespace eta::cuda
