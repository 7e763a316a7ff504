// What the records of both kinds are computed from: how the threads of a CTA share the tokens and
// coordinates of a block, sums of keys and values, and sums of squared distances.
#pragma once

#include <algorithm>

#include "kernels/cuda/device/kv_elements.cuh"
#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/rows/head_vector.cuh"

namespace eta::cuda {

// Threads of the thread blocks that append.
inline constexpr int32_t kAppendThreads = 256;

struct AppendArgs {
  float* k;  // post-RoPE, or rotated by the kernel
  const float* v;
  int64_t k_stride;
  int64_t v_stride;
  std::byte* tiles;
  std::byte* records;
  const float* metric;  // of kind outlier: C [HKV, d, d]; null: identity
  const float* centre;  // likewise: [HKV, d]; null: zero
  KvTile tile;
  int32_t sub_block;
};

inline AppendArgs MakeAppendArgs(const AppendKvParams& params) {
  return {.k = params.k.data,
          .v = params.v.data,
          .k_stride = params.k.stride,
          .v_stride = params.v.stride,
          .tiles = params.kv.tiles,
          .records = params.kv.records,
          .metric = params.kv.index_metric,
          .centre = params.kv.index_centre,
          .tile = KvTile(params.geometry),
          .sub_block = params.geometry.sub_block};
}

// Neighbouring coordinates of a token, which one thread takes.
inline constexpr int32_t kRecordChunk = 4;

// Keys whose distances a CTA finds at a time.
inline constexpr int32_t kDistanceTokens = 64;

// Floats between two of those keys: two neighbours fall into different halves of the banks.
ETA_HOST_DEVICE int32_t DistanceStride(int32_t head_dim) {
  return (head_dim + 31) / 32 * 32 + 16;
}

// Dynamic shared memory of WriteRecord. Kind moment: the shares of every token's squared norm. Kind
// outlier: keys, less their mean, a multiple of 16.
inline size_t RecordSharedBytes(const KvTile& tile) {
  const int32_t keys = std::min((tile.block_size + 15) / 16 * 16, kDistanceTokens);
  const int32_t floats = tile.form == RecordForm::kOutlier
                             ? keys * DistanceStride(tile.head_dim)
                             : tile.block_size * (tile.head_dim / kRecordChunk);
  return static_cast<size_t>(floats) * sizeof(float);
}

#ifdef __CUDACC__

__device__ __forceinline__ float* ValueTotal(const KvTile& tile, std::byte* records, int32_t block,
                                             int32_t kv_head) {
  return reinterpret_cast<float*>(records + block * tile.record_bytes() + tile.VTotal(kv_head));
}

// How the tokens of a block are shared out. Threads stand `chunks` wide along the head dimension
// and `lanes` deep along the tokens. One deviation is taken over a part: a sub-block, or the whole
// block. If there are fewer parts than lanes, parts are split into pieces.
struct Shares {
  int32_t lanes;
  int32_t part;    // tokens
  int32_t splits;  // pieces per part
  int32_t pieces;  // pieces per block

  __device__ Shares(int32_t chunks, int32_t block_size, int32_t sub_block)
      : lanes(kAppendThreads / chunks), part(sub_block > 0 ? sub_block : block_size) {
    const int32_t parts = block_size / part;
    splits = parts < lanes ? min(part, lanes / parts) : 1;
    pieces = parts * splits;
  }
  // Tokens [Begin, End) of a piece, possibly none.
  __device__ int32_t Begin(int32_t piece) const {
    return piece / splits * part + piece % splits * PieceTokens();
  }
  __device__ int32_t End(int32_t piece) const {
    return min(Begin(piece) + PieceTokens(), (piece / splits + 1) * part);
  }
  __device__ int32_t PieceTokens() const { return (part + splits - 1) / splits; }
  __device__ int32_t used_lanes() const { return min(lanes, pieces); }
};

struct alignas(16) RecordScratch {
  float keys[kAppendThreads * kRecordChunk];    // [lanes][d]
  float values[kAppendThreads * kRecordChunk];  // [lanes][d]
  float mean[kMaxHeadDim];
  float outlier[kMaxHeadDim];
  float distances[2][kMaxBlockSize];  // their sum counts
  int32_t max_norm;  // bits of the largest squared norm; ordered like the floats when read as ints
};

// A thread's part of a block and KV head.
struct BlockWork {
  const std::byte* head;  // KvTile::K of the block
  int32_t i;              // first coordinate of this thread
  int32_t lane;
  Shares shares;
  int32_t pieces;

  __device__ BlockWork(const KvTile& tile, int32_t sub_block, const std::byte* of_head)
      : head(of_head),
        i(static_cast<int32_t>(threadIdx.x) % (tile.head_dim / kRecordChunk) * kRecordChunk),
        lane(static_cast<int32_t>(threadIdx.x) / (tile.head_dim / kRecordChunk)),
        shares(tile.head_dim / kRecordChunk, tile.block_size, sub_block),
        pieces(lane < shares.lanes ? shares.pieces : 0) {}

  // The deviation of coordinate c, from the squares that SumSquares left.
  __device__ float DeviationOf(int32_t c, int32_t d, const RecordScratch& scratch) const {
    float most = 0.0f;
    for (int32_t l = 0; l < shares.used_lanes(); l += shares.splits) {
      float squares = 0.0f;
      for (int32_t s = 0; s < shares.splits; ++s) squares += scratch.keys[(l + s) * d + c];
      most = fmaxf(most, squares);
    }
    return sqrtf(most / static_cast<float>(shares.part));
  }
};

// Leaves every lane's sums of keys and of values in scratch; and, where asked for, the shares of
// every token's squared norm [b][d / kRecordChunk].
template <typename T>
__device__ __forceinline__ void SumTokens(const KvTile& tile, const BlockWork& work,
                                          float* norm_shares, RecordScratch& scratch) {
  constexpr int kChunk = kRecordChunk;
  const int32_t d = tile.head_dim;
  float key_sums[kChunk] = {};
  float value_sums[kChunk] = {};
  for (int32_t piece = work.lane; piece < work.pieces; piece += work.shares.lanes) {
    const int32_t end = work.shares.End(piece);
#pragma unroll 4
    for (int32_t token = work.shares.Begin(piece); token < end; ++token) {
      float key[kChunk];
      float value[kChunk];
      LoadKeyElements<T>(tile, work.head, token, work.i, key);
      LoadValueElements<T>(tile, work.head, token, work.i, value);
      float norm = 0.0f;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        key_sums[j] += key[j];
        value_sums[j] += value[j];
        norm += key[j] * key[j];
      }
      if (norm_shares != nullptr) norm_shares[token * (d / kChunk) + work.i / kChunk] = norm;
    }
  }
  if (work.lane < work.shares.lanes) {
    StoreElements(key_sums, scratch.keys + work.lane * d + work.i);
    StoreElements(value_sums, scratch.values + work.lane * d + work.i);
  }
}

// Leaves in scratch.keys, for DeviationOf, the squared distances of keys from scratch.mean. That of
// token `left_out` counts 0.
template <typename T>
__device__ __forceinline__ void SumSquares(const KvTile& tile, const BlockWork& work,
                                           int32_t left_out, RecordScratch& scratch) {
  constexpr int kChunk = kRecordChunk;
  float largest[kChunk] = {};
  for (int32_t piece = work.lane; piece < work.pieces; piece += work.shares.lanes) {
    const int32_t end = work.shares.End(piece);
    float squares[kChunk] = {};
    for (int32_t token = work.shares.Begin(piece); token < end; ++token) {
      if (token == left_out) continue;
      float key[kChunk];
      LoadKeyElements<T>(tile, work.head, token, work.i, key);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        const float distance = key[j] - scratch.mean[work.i + j];
        squares[j] += distance * distance;
      }
    }
#pragma unroll
    for (int j = 0; j < kChunk; ++j) largest[j] = fmaxf(largest[j], squares[j]);
  }
  if (work.lane < work.shares.lanes) {
    StoreElements(largest, scratch.keys + work.lane * tile.head_dim + work.i);
  }
}

#endif

}  // namespace eta::cuda
