// Asynchronous copies from global to shared memory, and the barriers that tell when they have
// arrived. On sm_90 one thread starts a bulk copy of a whole tile. On sm_80 the 32 lanes of a warp
// copy the tile in 16-byte pieces. Both ways the tile's barrier completes when all bytes are in
// place.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/mma.cuh"

namespace eta::cuda {

// The calling thread copies a piece of 4, 8 or 16 bytes. A piece of 16 bytes bypasses L1.
template <int kBytes>
__device__ __forceinline__ void CopyAsync(void* shared, const void* global) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(shared)),
                 "l"(global)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(SharedAddress(shared)),
                 "l"(global), "n"(kBytes)
                 : "memory");
  }
}

// Makes the thread's copies since the last call a group. Groups arrive in order.
__device__ __forceinline__ void CommitGroup() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of the thread's groups are outstanding.
template <int kPending>
__device__ __forceinline__ void WaitGroups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// A barrier in shared memory that counts arrivals in phases (PTX mbarrier).
struct Barrier {
  uint64_t word;
};

__device__ __forceinline__ void InitBarrier(Barrier* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}

// Publishes all barriers: call it after the last InitBarrier, before a barrier of the threads.
__device__ __forceinline__ void PublishBarriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void Arrive(Barrier* barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(
                   SharedAddress(barrier))
               : "memory");
}

// Waits until the phase of parity `phase` has completed.
__device__ __forceinline__ void Wait(Barrier* barrier, uint32_t phase) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\n"
      "bra again;\n"
      "ready: }" ::"r"(SharedAddress(barrier)),
      "r"(phase)
      : "memory");
#else
  asm volatile(
      "{ .reg .pred done;\n"
      "again:\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\n"
      "bra again;\n"
      "ready: }" ::"r"(SharedAddress(barrier)),
      "r"(phase)
      : "memory");
#endif
}

// The arrivals that a barrier of one warp's copies expects in a phase.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr uint32_t kCopyArrivals = 33;
#else
inline constexpr uint32_t kCopyArrivals = 1;
#endif

// Tells the barrier, once a phase and before its copies, how many bytes will arrive. All lanes of
// the warp call it. Whoever waits for the phase sees what lane `leader` wrote to shared memory
// before.
__device__ __forceinline__ void ExpectBytes(Barrier* barrier, uint32_t bytes, int leader = 0) {
  if (static_cast<int>(threadIdx.x % 32) != leader) return;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(
          SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
#else
  Arrive(barrier);
#endif
}

#if __CUDA_ARCH__ >= 900
// One thread copies `bytes` (a multiple of 16, both addresses 16-byte aligned). The data is read
// once and need not stay in L2.
__device__ __forceinline__ void BulkCopyOnce(void* shared, const std::byte* global, uint32_t bytes,
                                             Barrier* barrier) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(SharedAddress(shared)),
      "l"(global), "r"(bytes), "r"(SharedAddress(barrier)), "l"(policy)
      : "memory");
}
#endif

// As BulkCopyOnce, by a warp: all lanes call it with the same arguments.
__device__ __forceinline__ void CopyTile(void* shared, const std::byte* global, uint32_t bytes,
                                         Barrier* barrier) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x % 32 == 0) BulkCopyOnce(shared, global, bytes, barrier);
#else
  for (uint32_t at = threadIdx.x % 32 * 16; at < bytes; at += 512) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(shared) + at),
                 "l"(global + at)
                 : "memory");
  }
#endif
}

// Call it after the last copy of a phase. All lanes call it.
__device__ __forceinline__ void CommitCopies(Barrier* barrier) {
#if __CUDA_ARCH__ < 900
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(SharedAddress(barrier))
               : "memory");
#endif
}

// Call it before the barrier that hands shared memory, which threads have written, back to the
// copies.
__device__ __forceinline__ void OrderWritesBeforeCopies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Where a thread is in a ring of kStages stages.
template <int kStages>
struct RingPlace {
  int32_t stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

}  // namespace eta::cuda
