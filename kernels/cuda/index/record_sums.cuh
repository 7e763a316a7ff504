// What the records of both kinds are computed from: how the threads of a CTA share the tokens and
// coordinates of a block, its keys in shared memory, sums of keys and values, and distances.
//
// A record has two parts. What all tokens but the last say is prepared; a decode step does that
// while the kernel before it still runs, since earlier steps stored those tokens. The last token
// then finishes the record. Other steps do one after the other, so that bits are the same.
#pragma once

#include <algorithm>

#include "kernels/cuda/device/kv_elements.cuh"
#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/rows/head_vector.cuh"
#include "kernels/params/layer.h"

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

// Floats between two keys in shared memory: two neighbours fall into different halves of the banks.
ETA_HOST_DEVICE int32_t KeyStride(int32_t head_dim) {
  return (head_dim + 31) / 32 * 32 + 16;
}

// Dynamic shared memory of a record: the keys of a block, up to a multiple of 16.
inline size_t RecordSharedBytes(const KvTile& tile) {
  const int32_t keys = (tile.block_size + 15) / 16 * 16;
  return static_cast<size_t>(keys * KeyStride(tile.head_dim)) * sizeof(float);
}

#ifdef __CUDACC__

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
  // Of the tokens before the last: the sum and the mean of keys (0 if there are none), the sum of
  // values.
  float key_sum[kMaxHeadDim];
  float origin[kMaxHeadDim];
  float value_sum[kMaxHeadDim];
  float last_value[kMaxHeadDim];
  float lean[kMaxHeadDim];            // how the last key moves distances (outlier_record.cuh)
  float distances[2][kMaxBlockSize];  // their sum counts
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

// Brings the keys of all tokens but the last into `keys` [b][KeyStride(d)], and finds their mean
// and the sum of the values. All threads call it, and it ends with a __syncthreads().
template <typename T>
__device__ __forceinline__ void HoldTokens(const KvTile& tile, const BlockWork& work, float* keys,
                                           RecordScratch& scratch) {
  constexpr int kChunk = kRecordChunk;
  const int32_t d = tile.head_dim;
  const int32_t stride = KeyStride(d);
  const int32_t count = tile.block_size - 1;
  float key_sums[kChunk] = {};
  float value_sums[kChunk] = {};
  for (int32_t piece = work.lane; piece < work.pieces; piece += work.shares.lanes) {
    const int32_t piece_end = work.shares.End(piece);
    // Not min(piece_end, count): ptxas 13.0 loses the sign of one side of that loop's trip count.
    const int32_t end = piece_end - (piece_end > count ? 1 : 0);
#pragma unroll 4
    for (int32_t token = work.shares.Begin(piece); token < end; ++token) {
      float key[kChunk];
      float value[kChunk];
      LoadKeyElements<T>(tile, work.head, token, work.i, key);
      LoadValueElements<T>(tile, work.head, token, work.i, value);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        key_sums[j] += key[j];
        value_sums[j] += value[j];
      }
      StoreElements(key, keys + token * stride + work.i);
    }
  }
  if (work.lane < work.shares.lanes) {
    StoreElements(key_sums, scratch.keys + work.lane * d + work.i);
    StoreElements(value_sums, scratch.values + work.lane * d + work.i);
  }
  __syncthreads();
  for (auto c = static_cast<int32_t>(threadIdx.x); c < d; c += kAppendThreads) {
    float key_sum = 0.0f;
    float value_sum = 0.0f;
    for (int32_t l = 0; l < work.shares.used_lanes(); ++l) {
      key_sum += scratch.keys[l * d + c];
      value_sum += scratch.values[l * d + c];
    }
    scratch.key_sum[c] = key_sum;
    scratch.origin[c] = count > 0 ? key_sum / static_cast<float>(count) : 0.0f;
    scratch.value_sum[c] = value_sum;
  }
  __syncthreads();
}

// Brings the last token from the cache to where HoldTokens leaves the others.
template <typename T>
__device__ __forceinline__ void HoldLastToken(const KvTile& tile, const BlockWork& work,
                                              float* keys, RecordScratch& scratch) {
  const int32_t last = tile.block_size - 1;
  float elements[kRecordChunk];
  if (work.lane == 0) {
    LoadKeyElements<T>(tile, work.head, last, work.i, elements);
    StoreElements(elements, keys + last * KeyStride(tile.head_dim) + work.i);
  } else if (work.lane == 1) {
    LoadValueElements<T>(tile, work.head, last, work.i, elements);
    StoreElements(elements, scratch.last_value + work.i);
  }
}

// Four lanes take one of `count` vectors in shared memory. Calls visit(n, i, sum) for vector n and
// coordinates i .. i + 3; then end(n, sum) in one lane, with the four lanes' sum.
template <typename Visit, typename End>
__device__ __forceinline__ void SumVectors(int32_t count, int32_t d, Visit&& visit, End&& end) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  for (auto first = static_cast<int32_t>(threadIdx.x / 32 * 8); first < count;
       first += kAppendThreads / 4) {
    const int32_t n = first + lane / 4;
    float sum = 0.0f;
    if (n < count) {
#pragma unroll 4
      for (int32_t i = lane % 4 * 4; i < d; i += 16) visit(n, i, sum);
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (n < count && lane % 4 == 0) end(n, sum);
  }
}

// Leaves in scratch.distances the squared distances of the keys of `count` tokens from scratch's
// `origin`, or from 0 if that is null.
__device__ __forceinline__ void SquareKeys(const float* keys, int32_t count, int32_t d,
                                           const float* origin, float* distances) {
  const int32_t stride = KeyStride(d);
  SumVectors(
      count, d,
      [&](int32_t n, int32_t i, float& sum) {
        float key[4];
        LoadElements(keys + n * stride + i, key);
        float from[4] = {};
        if (origin != nullptr) LoadElements(origin + i, from);
#pragma unroll
        for (int j = 0; j < 4; ++j) sum += (key[j] - from[j]) * (key[j] - from[j]);
      },
      [&](int32_t n, float sum) { distances[n] = sum; });
}

// Leaves in scratch.keys, for DeviationOf, the squared distances of keys from `mean` (of this
// thread's coordinates). That of token `left_out` counts 0.
__device__ __forceinline__ void SumSquares(const BlockWork& work, int32_t d, const float* keys,
                                           const float (&mean)[kRecordChunk], int32_t left_out,
                                           RecordScratch& scratch) {
  constexpr int kChunk = kRecordChunk;
  const int32_t stride = KeyStride(d);
  float largest[kChunk] = {};
  for (int32_t piece = work.lane; piece < work.pieces; piece += work.shares.lanes) {
    const int32_t end = work.shares.End(piece);
    float squares[kChunk] = {};
#pragma unroll 4
    for (int32_t token = work.shares.Begin(piece); token < end; ++token) {
      float key[kChunk];
      LoadElements(keys + token * stride + work.i, key);
      if (token == left_out) continue;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        const float distance = key[j] - mean[j];
        squares[j] += distance * distance;
      }
    }
#pragma unroll
    for (int j = 0; j < kChunk; ++j) largest[j] = fmaxf(largest[j], squares[j]);
  }
  if (work.lane < work.shares.lanes) {
    StoreElements(largest, scratch.keys + work.lane * d + work.i);
  }
}

#endif

}  // namespace eta::cuda
