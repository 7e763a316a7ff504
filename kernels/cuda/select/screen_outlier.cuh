// Upper bounds and masses of 16 blocks by one warp, from records of kind outlier (screen_bounds.cuh
// has the method). mu8 and out8 are exact in float16. The square of sigma8 has 16 bits, so it is a
// sum of two float16.
#pragma once

#include "kernels/cuda/select/block_mass.cuh"
#include "kernels/cuda/select/screen_bounds.cuh"

namespace eta::cuda {

// The tag of the kind in template arguments.
struct OutlierIndex {};

template <int D>
struct RecordVectors<D, OutlierIndex> {
  using Chunk = uint2;
  using Scalars = uint32_t;  // the steps A and B, float16
  static constexpr int kChunks = kInSlices<D> ? D / 128 : D / 32;

  uint2 mu[2][kChunks];
  uint2 sigma[2][kChunks];
  uint2 outlier[2][kChunks];

  __device__ __forceinline__ void ReadOf(int i, const std::byte* from, int slice) {
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      const int chunk = slice * kChunks + j;
      mu[i][j] = *reinterpret_cast<const uint2*>(from + chunk * 32);
      sigma[i][j] = *reinterpret_cast<const uint2*>(from + D + chunk * 32);
      outlier[i][j] = *reinterpret_cast<const uint2*>(from + 2 * D + chunk * 32);
    }
  }
};

// The products of the scaled q with mu8 and out8, and sum q_i^2 sigma8_i^2.
template <int D, int HeadTiles>
struct OutlierSums {
  float q_mu[HeadTiles][2][4] = {};
  float variance[HeadTiles][3][4] = {};
  float q_outlier[HeadTiles][2][4] = {};

  __device__ __forceinline__ void Add(ScreenRecords<D, OutlierIndex>& records,
                                      const ScreenQueries<D, HeadTiles>& q) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      constexpr int kChunks = ScreenRecords<D, OutlierIndex>::kChunks;
      if (k > 0 && k % (2 * kChunks) == 0) records.ReadSlice(k / 2 / kChunks);
      const int j = k / 2 % kChunks;
      const auto half = [&](const uint2& chunk) { return k % 2 == 0 ? chunk.x : chunk.y; };
      uint32_t mu[4];
      uint32_t outlier[4];
      uint32_t top[4];
      uint32_t rest[4];
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const uint2 means = WidenInt8(half(records.mu[block][j]));
        const uint2 outliers = WidenInt8(half(records.outlier[block][j]));
        const uint2 deviations = WidenUint8(half(records.sigma[block][j]));
        mu[block] = means.x;
        mu[block + 2] = means.y;
        outlier[block] = outliers.x;
        outlier[block + 2] = outliers.y;
        Square(deviations.x, top[block], rest[block]);
        Square(deviations.y, top[block + 2], rest[block + 2]);
      }
#pragma unroll
      for (int tile = 0; tile < HeadTiles; ++tile) {
        Mma<Half>(q_mu[tile][0], mu, q.high[tile][k][0], q.high[tile][k][1]);
        Mma<Half>(q_mu[tile][1], mu, q.low[tile][k][0], q.low[tile][k][1]);
        Mma<Half>(variance[tile][0], top, q.square_high[tile][k][0], q.square_high[tile][k][1]);
        Mma<Half>(variance[tile][1], top, q.square_low[tile][k][0], q.square_low[tile][k][1]);
        Mma<Half>(variance[tile][2], rest, q.square_high[tile][k][0], q.square_high[tile][k][1]);
        Mma<Half>(q_outlier[tile][0], outlier, q.high[tile][k][0], q.high[tile][k][1]);
        Mma<Half>(q_outlier[tile][1], outlier, q.low[tile][k][0], q.low[tile][k][1]);
      }
    }
  }

  __device__ __forceinline__ float Mu(int tile, int i) const {
    return q_mu[tile][0][i] + q_mu[tile][1][i];
  }
  __device__ __forceinline__ float Outlier(int tile, int i) const {
    return q_outlier[tile][0][i] + q_outlier[tile][1][i];
  }
  __device__ __forceinline__ float Deviation(int tile, int i) const {
    return SquareRoot(
        NotBelowZero(variance[tile][0][i] + (variance[tile][1][i] + variance[tile][2][i])));
  }
};

// Bounds as in the other forms. A step that is infinite has zeros, and infinity times 0 is NaN.
template <int D, int HeadTiles>
__device__ __forceinline__ void UpperBounds(ScreenRecords<D, OutlierIndex>& records,
                                            const ScreenQueries<D, HeadTiles>& queries,
                                            float (&bounds)[HeadTiles][4]) {
  OutlierSums<D, HeadTiles> sums;
  sums.Add(records, queries);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 steps = UnpackPair<Half>(records.scalars[i / 2]);
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
      const float scale = queries.scale[tile][i % 2];
      const float half_size = queries.half_size[tile][i % 2];
      const float centre = queries.centre[tile][i % 2];
      const float spread =
          scale * (sums.Mu(tile, i) + queries.z[tile][i % 2] * sums.Deviation(tile, i));
      bounds[tile][i] =
          LargerOrNaN(steps.x * spread + (steps.x * half_size + centre),
                      steps.y * (scale * sums.Outlier(tile, i)) + (steps.y * half_size + centre));
    }
  }
}

// Masses and terms of Lhat, all as logarithms with base 2. Indices are those of bounds.
template <int HeadTiles>
struct ScreenMasses {
  float mass[HeadTiles][4];      // l_j
  float gaussian[HeadTiles][4];  // log2 n + m
  float outlier[HeadTiles][4];   // o
};

template <int D, int HeadTiles>
__device__ __forceinline__ void EstimateMasses(ScreenRecords<D, OutlierIndex>& records,
                                               const ScreenQueries<D, HeadTiles>& queries,
                                               const MassRule& rule,
                                               ScreenMasses<HeadTiles>& masses) {
  OutlierSums<D, HeadTiles> sums;
  sums.Add(records, queries);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 steps = UnpackPair<Half>(records.scalars[i / 2]);
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
      const float scale = queries.scale[tile][i % 2];
      const float centre = queries.centre[tile][i % 2];
      const float deviation = steps.x * (kOfEnvelope * scale * sums.Deviation(tile, i));
      const float mean = steps.x * (scale * sums.Mu(tile, i)) + centre;
      const float outlier = steps.y * (scale * sums.Outlier(tile, i)) + centre;
      masses.gaussian[tile][i] = fmaf(kLog2E, mean, rule.log_count);
      masses.outlier[tile][i] = kLog2E * outlier;
      masses.mass[tile][i] =
          BlockMass(rule, masses.gaussian[tile][i], deviation, masses.outlier[tile][i]);
    }
  }
}

// The log-sum-exp of the terms of the warp's blocks for heads 2t + i of a tile. `counts`: whether
// the lane's two blocks count. All lanes of a head get it.
template <int HeadTiles>
__device__ __forceinline__ float SumOfTerms(const ScreenMasses<HeadTiles>& masses, int tile, int i,
                                            const bool (&counts)[2]) {
  float top = -INFINITY;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!counts[half]) continue;
    top =
        fmaxf(top, fmaxf(masses.gaussian[tile][i + 2 * half], masses.outlier[tile][i + 2 * half]));
  }
#pragma unroll
  for (int step = 4; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
  float sum = 0.0f;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!counts[half]) continue;
    sum += Exp2(masses.gaussian[tile][i + 2 * half] - top) +
           Exp2(masses.outlier[tile][i + 2 * half] - top);
  }
#pragma unroll
  for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return top + Log2(sum);
}

}  // namespace eta::cuda
