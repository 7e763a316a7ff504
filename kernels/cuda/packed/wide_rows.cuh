// Rows of x in shared memory for the products of warpgroups, in a ring of chunks.
//
// A lane has eight neighbours of K of a channel (packed_layout.h), four of them for each of the two
// products of a group. The hardware takes a lane's factors of one product from two places of a row
// of x: two neighbours at 2c, and two at 2c + 8. So the pairs of a row change places on their way:
// of a group, pair q of the lanes' eight numbers stands at 8q + 2c, for lane c.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/packed/packed_chunk.cuh"
#include "kernels/cuda/packed/wide_product.cuh"

namespace eta::cuda::packed {

// 8 * kColumns rows of a chunk of K: 128 bytes each, as wgmma::Describe() has them.
template <int kColumns>
struct WideRows {
  static constexpr int kRows = 8 * kColumns;
  static constexpr int kStages = 8;
  static constexpr int kStageBytes = kRows * kChunk * 2;
  static constexpr int kTileBytes = kStages * kStageBytes;
  static constexpr int kBytes =
      kTileBytes + kStages * kChunkGroups * kRows * static_cast<int>(sizeof(float));

  std::byte* memory;  // aligned to the period of the swizzle
  Barrier* full;      // of each stage
  Barrier* empty;     // of each stage

  // One thread, before anything else.
  __device__ __forceinline__ void Initialise() const {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(full + stage, kWideSuppliers);
      InitBarrier(empty + stage, kWideOwners);
    }
    PublishBarriers();
  }
  // The phase of the stage's barriers that chunk `chunk` of the slice completes.
  static __device__ __forceinline__ uint32_t PhaseOf(int32_t chunk) {
    return static_cast<uint32_t>(chunk / kStages) % 2;
  }
  // The sums of the rows over a group, as SumsOfX has them.
  __device__ __forceinline__ float* Sums(int32_t stage, int group) const {
    return reinterpret_cast<float*>(memory + kTileBytes) + (stage * kChunkGroups + group) * kRows;
  }
};

// Arrives for the calling warp.
__device__ __forceinline__ void ArriveAsWarp(Barrier* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) Arrive(barrier);
}

// A warp that brings some rows of one group of every chunk of a slice, of two chunks at a time. The
// fence of writes waits for loads as well, so none are on their way then. What is beyond R, K or
// the slice is zero.
template <typename T, int kColumns, bool kSums>
class Supplier {
 public:
  using Rows = WideRows<kColumns>;

  // `supplier`: which of the suppliers it is.
  __device__ Supplier(const product::Args& args, const Rows& rows, int32_t supplier,
                      int32_t first_chunk, int32_t num_chunks)
      : rows_(rows),
        group_(supplier % kChunkGroups),
        first_column_(supplier / kChunkGroups * kOwn),
        num_chunks_(num_chunks),
        k_(first_chunk * kChunk + group_ * kGroupNumbers + Lane() % 4 * 8),
        end_k_(min(args.k, (first_chunk + num_chunks) * kChunk)),
        rows_left_(args.rows - first_column_ * 8 - Lane() / 4),
        stride_(static_cast<int32_t>(args.x_stride) * 16),
        from_(args.x + ((first_column_ * 8 + Lane() / 4) * args.x_stride + k_) * 2) {}

  __device__ __forceinline__ void Run() {
    uint4 x[2][kOwn];
    for (int32_t chunk = 0; chunk < num_chunks_; chunk += 2) {
      Load(x[0]);
      Load(x[1]);
      Store(x[0], chunk);
      if (chunk + 1 < num_chunks_) Store(x[1], chunk + 1);
      wgmma::PublishWrites();
      ArriveAsWarp(rows_.full + chunk % Rows::kStages);
      if (chunk + 1 < num_chunks_) ArriveAsWarp(rows_.full + (chunk + 1) % Rows::kStages);
    }
  }

 private:
  static constexpr int kOwn = kColumns * kChunkGroups / kWideSuppliers;  // columns
  static constexpr int32_t kGroupNumbers = kChunk / kChunkGroups;

  static __device__ __forceinline__ int32_t Lane() { return threadIdx.x % 32; }

  __device__ __forceinline__ void Load(uint4 (&x)[kOwn]) {
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      x[n] = {};
      if (k_ >= end_k_ || 8 * n >= rows_left_) continue;
      // Past L1: the kernel in front wrote it.
      x[n] = __ldcg(reinterpret_cast<const uint4*>(from_ + n * int64_t{stride_}));
    }
    k_ += kChunk;
    from_ += kChunk * 2;
  }
  __device__ __forceinline__ void Store(const uint4 (&x)[kOwn], int32_t chunk) {
    const int32_t row = Lane() / 4;
    const int32_t stage = chunk % Rows::kStages;
    Wait(rows_.empty + stage, Rows::PhaseOf(chunk) ^ 1);  // at first all stages are empty
    // Pair 0; the swizzle makes of a step by q pairs an exclusive or.
    const int32_t to = stage * Rows::kStageBytes + first_column_ * 1024 + row * 128 +
                       (group_ * 4 ^ row) * 16 + Lane() % 4 * 4;
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      const uint32_t pairs[4] = {x[n].x, x[n].y, x[n].z, x[n].w};
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        *reinterpret_cast<uint32_t*>(rows_.memory + (to ^ q * 16) + n * 1024) = pairs[q];
      }
    }
    if constexpr (kSums) {
      float* sums = rows_.Sums(stage, group_) + first_column_ * 8;
#pragma unroll
      for (int n = 0; n < kOwn; ++n) {
        const float2 of_x = SumsOfX<T>(x[n]);
        if (Lane() < 4) reinterpret_cast<float2*>(sums)[4 * n + Lane()] = of_x;
      }
    }
  }

  const Rows& rows_;
  int32_t group_;
  int32_t first_column_;
  int32_t num_chunks_;
  // The lane's part of the first row that it brings of the next chunk.
  int32_t k_;
  int32_t end_k_;
  int32_t rows_left_;  // from its first on
  int32_t stride_;     // of eight rows, in bytes
  const std::byte* from_;
};

}  // namespace eta::cuda::packed
