// Tiles of the attention kernels: 64 tokens of one head, in kHeadDim / 64 parts of 64 elements. A
// part is 8 KB, swizzled as wgmma::Describe() has it. One thread of a CTA, the producer, fills a
// ring of stages with them; the consumers, warpgroups of 64 rows each, multiply.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "training/cuda/attention/kernel_params.h"

namespace eta::training::cuda {

using eta::cuda::Barrier;
using eta::cuda::BFloat16;
using eta::cuda::RingPlace;
using eta::cuda::SharedAddress;
namespace wgmma = eta::cuda::wgmma;

inline constexpr int kTileTokens = 64;
inline constexpr int kPartBytes = 64 * 128;

// The CTA of a kernel that holds rows of queries: consumers, and the producer's warpgroup.
template <int kHeadDim>
struct RowShape {
  static constexpr int kConsumers = kHeadDim == 64 ? 3 : 2;
  static constexpr int kThreads = (kConsumers + 1) * 128;
  static constexpr int kTileRows = kConsumers * 64;
  static constexpr int kConsumerRegisters = kHeadDim == 64 ? 160 : 240;
  static constexpr int kProducerRegisters = kHeadDim == 64 ? 32 : 24;
};

// Moves registers between warpgroups. All threads of the warpgroup call it.
template <int kRegisters>
__device__ __forceinline__ void GrowRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void ShrinkRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// One thread tells the barrier how many bytes its copies will bring.
__device__ __forceinline__ void Expect(Barrier* barrier, uint32_t bytes) {
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(
          SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}

// One thread copies a tile: tokens [token, token + 64) of a head.
template <int kHeadDim>
__device__ __forceinline__ void CopyTile(uint32_t to, const CUtensorMap& map, int32_t head,
                                         int32_t token, int32_t sequence, Barrier* barrier) {
#pragma unroll
  for (int part = 0; part < kHeadDim / 64; ++part) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2, %3, %4, %5}], [%6];" ::"r"(to + part * kPartBytes),
        "l"(&map), "r"(part * 64), "r"(head), "r"(token), "r"(sequence), "r"(SharedAddress(barrier))
        : "memory");
  }
}

// One thread copies `bytes` (a multiple of 16) of contiguous memory.
__device__ __forceinline__ void CopyBytes(uint32_t to, const void* from, uint32_t bytes,
                                          Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}

struct Work {
  int32_t head;  // in [0, B * H)
  int32_t tile;  // the first has the most work
};

__device__ __forceinline__ Work WorkOf(const WorkOrder& order) {
  const int32_t index = static_cast<int32_t>(blockIdx.x);
  const int32_t section = index / (order.section * order.tiles);
  const int32_t first = section * order.section;
  const int32_t heads = min(order.section, order.heads - first);
  const int32_t rest = index - first * order.tiles;
  return {order.first_head + first + rest % heads, rest / heads};
}

// scores = A B^T over kHeadDim elements, A and B tiles in shared memory.
template <int kHeadDim>
__device__ __forceinline__ void MultiplyTiles(float (&scores)[8][4], uint32_t a, uint32_t b) {
#pragma unroll
  for (int part = 0; part < kHeadDim / 64; ++part) {
    const uint64_t rows = wgmma::Describe(a + part * kPartBytes);
    const uint64_t columns = wgmma::Describe(b + part * kPartBytes);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (part == 0 && k == 0) {
        wgmma::MultiplyShared<BFloat16, false>(scores, rows, columns);
      } else {
        wgmma::MultiplyShared<BFloat16, true>(scores, rows + k * wgmma::kInnerStep,
                                              columns + k * wgmma::kInnerStep);
      }
    }
  }
}

// scores = A B^T over 64 elements, A [64, 64] in registers, B a tile.
__device__ __forceinline__ void MultiplyRows(float (&scores)[8][4], const uint32_t (&a)[4][4],
                                             uint32_t b) {
  const uint64_t columns = wgmma::Describe(b);
  wgmma::Multiply<BFloat16, false, false>(scores, a[0], columns);
#pragma unroll
  for (int k = 1; k < 4; ++k) {
    wgmma::Multiply<BFloat16, false, true>(scores, a[k], columns + k * wgmma::kInnerStep);
  }
}

// sums += A B, A [64, 64] in registers, B a tile [64 tokens, kHeadDim].
template <int kHeadDim>
__device__ __forceinline__ void AddProduct(float (&sums)[kHeadDim / 64][8][4],
                                           const uint32_t (&a)[4][4], uint32_t b) {
#pragma unroll
  for (int part = 0; part < kHeadDim / 64; ++part) {
    const uint64_t columns = wgmma::Describe(b + part * kPartBytes);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma::Multiply<BFloat16, true, true>(sums[part], a[k],
                                            columns + k * wgmma::kInnerStepTransposed);
    }
  }
}

template <int kParts>
__device__ __forceinline__ void Pin(float (&sums)[kParts][8][4]) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) wgmma::Pin(sums[part]);
}

// Writes 64 rows of a head, times `factor` of each row, as bfloat16. Rows from `rows` on are left
// alone. `to` is the first row; rows are `stride` elements apart.
template <int kHeadDim>
__device__ __forceinline__ void StoreTile(const float (&sums)[kHeadDim / 64][8][4],
                                          const float (&factor)[2], __nv_bfloat16* to,
                                          int64_t stride, int32_t rows) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t row = threadIdx.x % 128 / 32 * 16 + lane / 4 + half * 8;
    if (row >= rows) continue;
    __nv_bfloat16* at = to + row * stride + lane % 4 * 2;
#pragma unroll
    for (int part = 0; part < kHeadDim / 64; ++part) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        *reinterpret_cast<uint32_t*>(at + part * 64 + n * 8) = eta::cuda::PackPair<BFloat16>(
            sums[part][n][2 * half] * factor[half], sums[part][n][2 * half + 1] * factor[half]);
      }
    }
  }
}

}  // namespace eta::training::cuda
