// What a thread block of packed_chain.cu takes at once, and the end of that.
//
// A unit has the slices that a cluster of RunPackedProduct has, but a warp for each of them: 8
// tiles of 16 channels, or fewer tiles whose K is cut. So the order of sums is the same.
#pragma once

#include <cstdint>

#include "kernels/cuda/packed/packed_args.cuh"
#include "kernels/cuda/rows/chain_parts.cuh"
#include "kernels/cuda/rows/tile_sums.cuh"

namespace eta::cuda::packed {

using product::Multipliers;
using product::Sums;

// What a warp has of a unit: a slice of a tile.
struct Share {
  const Segment* segment;
  int32_t tile;  // of the segment
  int32_t first_chunk;
  int32_t num_chunks;  // 0: there is no tile
};

// Tiles of a unit. Warp w has slice w / Owners() of tile w % Owners().
__device__ __forceinline__ int32_t Owners(const Args& args) {
  return kWarps / args.ranks;
}
__device__ __forceinline__ Share ShareOf(const Args& args, int32_t unit, int32_t warp) {
  const int32_t owners = Owners(args);
  const TilePlace place = PlaceOf(args, unit, warp % owners, owners);
  const Segment& segment = args.segments[place.segment];
  const int32_t first = warp / owners * args.slice;
  const int32_t count = min(args.slice, args.chunks - first);
  return {&segment, place.tile, first, place.tile < segment.num_tiles ? max(count, 0) : 0};
}
// The sum of all slices of tile `tile` of the unit, in the order of ranks.
template <int kColumns>
__device__ __forceinline__ float SumOfSlices(const Args& args,
                                             const float (&of_warps)[kWarps][4 * kColumns][32],
                                             int32_t tile, int32_t i) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  if (args.ranks == 1) return of_warps[tile][i][lane];
  float sum = 0.0f;
  for (int32_t warp = tile; warp < kWarps; warp += Owners(args)) sum += of_warps[warp][i][lane];
  return sum;
}

// An output of a unit, for the calling lane.
struct UnitOutput {
  int32_t tile;  // of the unit
  int32_t i;     // of the tile's sums
  int32_t row;
  int32_t own;  // the channel, within its segment
  const Segment* segment;
  bool exists;
};

template <int kColumns>
__device__ __forceinline__ UnitOutput UnitOutputOf(const Args& args, int32_t unit, int32_t index) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const bool activates = args.product.activated != nullptr;
  UnitOutput out;
  out.tile = index / (4 * kColumns);
  out.i = index % (4 * kColumns);
  out.row = out.i / 4 * 8 + lane % 4 * 2 + out.i % 2;
  const TilePlace place = PlaceOf(args, unit, out.tile, Owners(args));
  out.segment = &args.segments[place.segment];
  out.own = place.tile * kTileChannels + lane / 4 + (out.i % 4 >= 2 ? 8 : 0);
  out.exists = out.tile < (activates ? Owners(args) / 2 : Owners(args)) &&
               out.own < out.segment->channels && out.row < args.product.rows;
  return out;
}

// Adds the slices up and stores the unit's results, which the warps take in turns. `count`: units
// before it.
template <typename T, int kColumns>
__device__ __forceinline__ void FinishUnit(const Args& args, int32_t unit, int32_t count,
                                           Sums<kColumns>& shared, float (&sums)[kColumns][4]) {
  constexpr int kTurns = 4 * kColumns;
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const product::Args& product = args.product;
  auto& of_warps = shared.of_warps[count % 2];
  float old[kTurns] = {};
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    of_warps[warp][turn][lane] = sums[turn / 4][turn % 4];
    const UnitOutput out = UnitOutputOf<kColumns>(args, unit, warp + turn * kWarps);
    if (!product.accumulate || !out.exists) continue;
    old[turn] = product::LoadOut<T>(product, out.row, out.segment->first_channel + out.own);
  }
  Multipliers::Sync();
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const UnitOutput out = UnitOutputOf<kColumns>(args, unit, warp + turn * kWarps);
    if (!out.exists) continue;
    const int32_t channel = out.segment->first_channel + out.own;
    float value = __fmul_rn(SumOfSlices<kColumns>(args, of_warps, out.tile, out.i),
                            out.segment->units[out.own]);
    if (product.accumulate) value = __fadd_rn(value, old[turn]);
    if (product.bias != nullptr) value = __fadd_rn(value, product.bias[channel]);
    product::StoreOut<T>(product, out.row, channel, value);
    if (product.activated == nullptr) continue;
    const Segment& up = args.segments[1];
    const int32_t beside = out.tile + Owners(args) / 2;
    const float other =
        __fmul_rn(SumOfSlices<kColumns>(args, of_warps, beside, out.i), up.units[out.own]);
    product::StoreOut<T>(product, out.row, up.first_channel + out.own, other);
    StoreActivated<T>(product.activated, out.row * product.activated_stride + out.own,
                      product.activation, value, other);
  }
}

}  // namespace eta::cuda::packed
