// The arguments of products with packed weights, and which tile of channels a warp takes.
#pragma once

#include <cstdint>

#include "kernels/cuda/packed/packed_layout.h"
#include "kernels/cuda/rows/product_tile.cuh"

namespace eta::cuda {

struct Weight;

namespace packed {

using product::kThreads;
using product::kWarps;

// A part of the weight, and the clusters of thread blocks that multiply it.
struct Segment {
  const std::byte* tiles;
  const float* units;  // [tiles * 16]
  PackedType type;
  int32_t num_tiles;
  int32_t channels;
  int32_t first_channel;  // of the matrix
  int32_t first_cluster;
};

struct Args {
  product::Args product;  // `weight` is not read
  Segment segments[kMostParts];
  int32_t num_segments;
  int32_t chunks;  // of a tile
  int32_t slice;   // chunks that a thread block of a cluster takes
  int32_t ranks;   // thread blocks of a cluster
};

// With SwiGLU the second half of the warps has the tiles of the second segment that stand beside
// those of the first half.
struct TilePlace {
  int32_t segment;
  int32_t tile;  // of the segment; num_tiles or more: there is none
};

// The segment of cluster `cluster`, without SwiGLU.
__device__ __forceinline__ int32_t SegmentOf(const Args& args, int32_t cluster) {
  int32_t segment = 0;
#pragma unroll
  for (int32_t i = 1; i < kMostParts; ++i) {
    if (i < args.num_segments && cluster >= args.segments[i].first_cluster) segment = i;
  }
  return segment;
}

// The tile of warp `warp` of cluster `cluster`.
__device__ __forceinline__ TilePlace PlaceOf(const Args& args, int32_t cluster, int32_t warp) {
  constexpr int32_t kHalf = kWarps / 2;
  if (args.product.activated != nullptr) {
    return {warp / kHalf, cluster * kHalf + warp % kHalf};
  }
  const int32_t segment = SegmentOf(args, cluster);
  return {segment, (cluster - args.segments[segment].first_cluster) * kWarps + warp};
}

}  // namespace packed
}  // namespace eta::cuda
