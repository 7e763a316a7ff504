// The end of a product with packed weights: the sums of a cluster's slices, and the ops behind it.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "kernels/cuda/packed/packed_args.cuh"

namespace eta::cuda::packed {

inline constexpr int kMostRanks =
    8;  // the largest cluster that every device with clusters supports

// Sums of the thread block's warps, for its cluster.
template <int kColumns>
using SharedSums = float[kWarps][4 * kColumns][32];

__device__ __forceinline__ int32_t RankOf([[maybe_unused]] const Args& args) {
  return static_cast<int32_t>(blockIdx.x) % args.ranks;
}

// A barrier of the cluster's threads.
__device__ __forceinline__ void SynchroniseCluster([[maybe_unused]] const Args& args) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (args.ranks > 1) {
    cooperative_groups::this_cluster().sync();
    return;
  }
#endif
  __syncthreads();
}

// The sum of all slices: element i of warp `warp`.
template <int kColumns>
__device__ __forceinline__ float SumOfRanks(const Args& args, SharedSums<kColumns>& sums,
                                            int32_t warp, int32_t i) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (args.ranks > 1) {
    float parts[kMostRanks];
#pragma unroll
    for (int rank = 0; rank < kMostRanks; ++rank) {
      if (rank >= args.ranks) continue;
      const float* of_rank = cooperative_groups::this_cluster().map_shared_rank(
          &sums[warp][i][lane], static_cast<unsigned>(rank));
      parts[rank] = *of_rank;
    }
    float sum = 0.0f;
#pragma unroll
    for (int rank = 0; rank < kMostRanks; ++rank) {
      if (rank < args.ranks) sum += parts[rank];
    }
    return sum;
  }
#endif
  return sums[warp][i][lane];
}

// The output that item `item` of a cluster is, for the calling lane.
struct Output {
  int32_t warp;  // whose tile
  int32_t i;     // of the warp's sums
  int32_t row;
  const Segment* segment;
  int32_t channel;  // of the segment
  bool exists;
};

template <int kColumns>
__device__ __forceinline__ Output OutputOf(const Args& args, int32_t cluster, int32_t item) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  Output out;
  out.warp = item / (4 * kColumns);
  out.i = item % (4 * kColumns);
  out.row = out.i / 4 * 8 + lane % 4 * 2 + out.i % 2;
  const TilePlace place = PlaceOf(args, cluster, out.warp);
  out.segment = &args.segments[place.segment];
  out.channel = place.tile * kTileChannels + lane / 4 + (out.i % 4 >= 2 ? 8 : 0);
  out.exists = out.channel < out.segment->channels && out.row < args.product.rows;
  return out;
}

// Stores an output, a sum of products times its unit, and what the ops behind the product make of
// it. `channel` is one of the segment. `old`: what out has, if the product accumulates. `met`: with
// SwiGLU the output of the other segment.
template <typename T>
__device__ __forceinline__ void StoreOutput(const Args& args, const Segment& segment, int32_t row,
                                            int32_t channel, float value, float old, float met) {
  const product::Args& product = args.product;
  const int32_t at = segment.first_channel + channel;
  if (product.accumulate) value = __fadd_rn(value, old);
  if (product.bias != nullptr) value = __fadd_rn(value, product.bias[at]);
  product::StoreOut<T>(product, row, at, value);
  if (product.activated == nullptr) return;
  product::StoreOut<T>(product, row, args.segments[1].first_channel + channel, met);
  StoreActivated<T>(product.activated, row * product.activated_stride + channel, product.activation,
                    value, met);
}

template <typename T, int kColumns>
__device__ __forceinline__ void Finish(const Args& args, SharedSums<kColumns>& sums,
                                       const float (&own)[kColumns][4]) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t cluster = static_cast<int32_t>(blockIdx.x) / args.ranks;
  const bool activates = args.product.activated != nullptr;
  // The cluster's warps take its outputs in turns.
  constexpr int kMostTurns = 4 * kColumns;
  const int32_t items = (activates ? kWarps / 2 : kWarps) * 4 * kColumns;
  const int32_t first = RankOf(args) * kWarps + warp;
  const int32_t step = args.ranks * kWarps;
  // Few are asked for before the cluster meets.
  constexpr bool kEarly = kColumns <= 2;
  const auto load_old = [&](const Output& out) {
    return product::LoadOut<T>(args.product, out.row, out.segment->first_channel + out.channel);
  };
  float old[kEarly ? kMostTurns : 1] = {};
  if (kEarly && args.product.accumulate) {
#pragma unroll
    for (int turn = 0; turn < kMostTurns; ++turn) {
      const int32_t item = first + turn * step;
      if (item >= items) continue;
      const Output out = OutputOf<kColumns>(args, cluster, item);
      if (out.exists) old[kEarly ? turn : 0] = load_old(out);
    }
  }
  __syncthreads();  // from here on nobody reads the ring, or the norm's rows
#pragma unroll
  for (int i = 0; i < 4 * kColumns; ++i) sums[warp][i][lane] = own[i / 4][i % 4];
  SynchroniseCluster(args);
#pragma unroll(kEarly ? kMostTurns : 1)
  for (int turn = 0; turn < kMostTurns; ++turn) {
    const int32_t item = first + turn * step;
    if (item >= items) continue;
    const Output out = OutputOf<kColumns>(args, cluster, item);
    if (!out.exists) continue;
    const float value = __fmul_rn(SumOfRanks<kColumns>(args, sums, out.warp, out.i),
                                  out.segment->units[out.channel]);
    float before = 0.0f;
    if (args.product.accumulate) before = kEarly ? old[kEarly ? turn : 0] : load_old(out);
    float met = 0.0f;
    if (activates) {
      met = __fmul_rn(SumOfRanks<kColumns>(args, sums, out.warp + kWarps / 2, out.i),
                      args.segments[1].units[out.channel]);
    }
    StoreOutput<T>(args, *out.segment, out.row, out.channel, value, before, met);
  }
  if (args.ranks > 1) SynchroniseCluster(args);  // others read this thread block's sums
}

}  // namespace eta::cuda::packed
