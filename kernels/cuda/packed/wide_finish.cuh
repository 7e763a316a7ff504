// The end of a product of warpgroups with packed weights: the sums of a cluster's slices, and the
// ops behind it.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "kernels/cuda/packed/packed_args.cuh"
#include "kernels/cuda/packed/packed_finish.cuh"
#include "kernels/cuda/packed/wide_product.cuh"

namespace eta::cuda::packed {

// Sums of the thread block's owners, for its cluster.
template <int kColumns>
using WideSums = float4[kWideOwners][kColumns][32];

// A tile's outputs, as a lane has them: of each column of eight rows two rows and two channels, as
// in Mma().
template <typename T>
class WideOutputs {
 public:
  __device__ WideOutputs(const Args& args, const Segment& segment, int32_t tile)
      : args_(args.product) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    row_ = lane % 4 * 2;
    const int32_t of_segment = tile * kTileChannels + lane / 4;
    channel_ = segment.first_channel + of_segment;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      exists_[half] = of_segment + 8 * half < segment.channels;
      if (!exists_[half]) continue;
      unit_[half] = segment.units[of_segment + 8 * half];
      if (args_.bias != nullptr) bias_[half] = args_.bias[channel_ + 8 * half];
    }
  }

  // What the sums are added to.
  __device__ __forceinline__ void LoadOld(int32_t column, float (&old)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (Exists(column, i)) old[i] = product::LoadOut<T>(args_, Row(column, i), Channel(i));
    }
  }
  __device__ __forceinline__ void Store(int32_t column, const float (&sums)[4],
                                        const float (&old)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!Exists(column, i)) continue;
      float value = __fmul_rn(sums[i], unit_[i / 2]);
      if (args_.accumulate) value = __fadd_rn(value, old[i]);
      if (args_.bias != nullptr) value = __fadd_rn(value, bias_[i / 2]);
      product::StoreOut<T>(args_, Row(column, i), Channel(i), value);
    }
  }

 private:
  __device__ __forceinline__ int32_t Row(int32_t column, int i) const {
    return column * 8 + row_ + i % 2;
  }
  __device__ __forceinline__ int32_t Channel(int i) const {
    return channel_ + i / 2 * 8;
  }
  __device__ __forceinline__ bool Exists(int32_t column, int i) const {
    return exists_[i / 2] && Row(column, i) < args_.rows;
  }

  const product::Args& args_;
  int32_t row_;
  int32_t channel_;  // of the matrix
  bool exists_[2];
  float unit_[2] = {};
  float bias_[2] = {};
};

// The owners call it where a cluster is one thread block.
template <typename T, int kColumns>
__device__ __forceinline__ void FinishAlone(const Args& args, const Segment& segment, int32_t tile,
                                            const float (&own)[kColumns][4]) {
  const WideOutputs<T> outputs(args, segment, tile);
  float old[kColumns][4] = {};
  if (args.product.accumulate) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) outputs.LoadOld(column, old[column]);
  }
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    outputs.Store(column, own[column], old[column]);
  }
}

// The owners call it where a cluster has several thread blocks, which take its outputs in turns.
// `first_tile`: of the cluster. The suppliers call MeetCluster() meanwhile.
template <typename T, int kColumns>
__device__ __forceinline__ void FinishCluster(const Args& args, const Segment& segment,
                                              int32_t first_tile, WideSums<kColumns>& sums,
                                              const float (&own)[kColumns][4]) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  __syncthreads();  // from here on nobody reads the rings
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    sums[warp][column][lane] = {own[column][0], own[column][1], own[column][2], own[column][3]};
  }
  SynchroniseCluster(args);
  for (int32_t item = RankOf(args) * kWideOwners + warp; item < kWideOwners * kColumns;
       item += args.ranks * kWideOwners) {
    const int32_t column = item % kColumns;
    const WideOutputs<T> outputs(args, segment, first_tile + item / kColumns);
    float old[4] = {};
    if (args.product.accumulate) outputs.LoadOld(column, old);
    float4 parts[kMostRanks];
#pragma unroll
    for (int rank = 0; rank < kMostRanks; ++rank) {
      if (rank >= args.ranks) continue;
      parts[rank] = *cooperative_groups::this_cluster().map_shared_rank(
          &sums[item / kColumns][column][lane], static_cast<unsigned>(rank));
    }
    float total[4] = {};
#pragma unroll
    for (int rank = 0; rank < kMostRanks; ++rank) {
      if (rank >= args.ranks) continue;
      total[0] += parts[rank].x;
      total[1] += parts[rank].y;
      total[2] += parts[rank].z;
      total[3] += parts[rank].w;
    }
    outputs.Store(column, total, old);
  }
  SynchroniseCluster(args);  // others read this thread block's sums
}

__device__ __forceinline__ void MeetCluster(const Args& args) {
  __syncthreads();
  SynchroniseCluster(args);
  SynchroniseCluster(args);
}

}  // namespace eta::cuda::packed
