// The record of a full block, computed from its keys and values in the cache. The geometry fixes
// the order of the sums, whoever stored the tokens and in how many steps.
#pragma once

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
          .tile = KvTile(params.geometry),
          .sub_block = params.geometry.sub_block};
}

// Neighbouring coordinates of a token, which one thread takes.
inline constexpr int32_t kRecordChunk = 4;

// Dynamic shared memory of WriteRecord: the shares of every token's squared norm.
inline size_t RecordSharedBytes(const KvTile& tile) {
  return static_cast<size_t>(tile.block_size * (tile.head_dim / kRecordChunk)) * sizeof(float);
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
  int32_t max_norm;  // bits of the largest squared norm; ordered like the floats when read as ints
};

// One warp writes an 8-bit record without v_total. `mu` and `sigma` [d] are those of a float16
// record.
__device__ __forceinline__ void WriteNarrowVectors(const KvTile& tile, std::byte* record,
                                                   int32_t kv_head, const float* mu,
                                                   const float* sigma, float max_norm) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  float largest_mu = 0.0f;
  float largest_sigma = 0.0f;
  for (int32_t c = lane; c < tile.head_dim; c += 32) {
    largest_mu = fmaxf(largest_mu, fabsf(mu[c]));
    largest_sigma = fmaxf(largest_sigma, sigma[c]);
  }
  const float mu_scale = LargestOfWarp(largest_mu) / 127.0f;
  const int32_t exponent = ScaleExponentOf(LargestOfWarp(largest_sigma));
  const float to_sigma8 = PowerOfTwo(-exponent);
  auto* mu8 = reinterpret_cast<int8_t*>(record + tile.Mu(kv_head));
  auto* sigma8 = reinterpret_cast<uint8_t*>(record + tile.Sigma(kv_head));
  float squares = 0.0f;
  for (int32_t c = lane; c < tile.head_dim; c += 32) {
    const float steps =
        mu_scale > 0.0f ? fminf(fmaxf(rintf(mu[c] / mu_scale), -127.0f), 127.0f) : 0.0f;
    const float lost = __fsub_rn(mu[c], __fmul_rn(mu_scale, steps));
    squares += lost * lost;
    mu8[c] = static_cast<int8_t>(steps);

    constexpr uint8_t kLargest = 0x7E;  // 448
    const float scaled = sigma[c] * to_sigma8;
    const auto nearest = static_cast<uint8_t>(ToE4M3(scaled, 0.0f) & 0xFF);
    const float down = __half2float(__half(__nv_cvt_fp8_to_halfraw(nearest, __NV_E4M3)));
    const bool below = down < scaled && nearest < kLargest;
    sigma8[c] = static_cast<uint8_t>(nearest + (below ? 1 : 0));
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) squares += __shfl_xor_sync(~0u, squares, lanes);
  if (lane == 0) {
    *reinterpret_cast<RecordTrailer*>(record + tile.MaxNorm(kv_head)) = {
        .max_norm = max_norm,
        .mu_scale = mu_scale,
        .mu_error = sqrtf(squares),
        .sigma_scale = PowerOfTwo(exponent)};
  }
}

// Writes the record of full block `ordinal` of a block table for one KV head. All threads of the
// CTA call it. `chained`: the sum of V is added to the total of the block before; otherwise the
// record keeps the block's own sum. REQUIRES: a __syncthreads() since the CTA stored tokens.
template <typename T>
__device__ __forceinline__ void WriteRecord(const AppendArgs& args, const int32_t* table,
                                            int32_t ordinal, int32_t kv_head, bool chained) {
  constexpr int kChunk = kRecordChunk;
  extern __shared__ float norm_shares[];  // [b][chunks]
  __shared__ RecordScratch scratch;
  const KvTile& tile = args.tile;
  const int32_t d = tile.head_dim;
  const int32_t b = tile.block_size;
  const int32_t chunks = d / kChunk;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t i = thread % chunks * kChunk;  // first coordinate of this thread
  const int32_t lane = thread / chunks;
  const Shares shares(chunks, b, args.sub_block);
  const int32_t pieces = lane < shares.lanes ? shares.pieces : 0;
  const int32_t block = table[ordinal];
  const std::byte* head = args.tiles + tile.K(block, kv_head);
  std::byte* record = args.records + block * tile.record_bytes();

  float key_sums[kChunk] = {};
  float value_sums[kChunk] = {};
  for (int32_t piece = lane; piece < pieces; piece += shares.lanes) {
    const int32_t end = shares.End(piece);
#pragma unroll 4
    for (int32_t token = shares.Begin(piece); token < end; ++token) {
      float key[kChunk];
      float value[kChunk];
      LoadKeyElements<T>(tile, head, token, i, key);
      LoadValueElements<T>(tile, head, token, i, value);
      float norm = 0.0f;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        key_sums[j] += key[j];
        value_sums[j] += value[j];
        norm += key[j] * key[j];
      }
      norm_shares[token * chunks + i / kChunk] = norm;
    }
  }
  if (lane < shares.lanes) {
    StoreElements(key_sums, scratch.keys + lane * d + i);
    StoreElements(value_sums, scratch.values + lane * d + i);
  }
  if (thread == 0) scratch.max_norm = 0;
  __syncthreads();

  const float* before = chained && ordinal > 0
                            ? ValueTotal(tile, args.records, table[ordinal - 1], kv_head)
                            : nullptr;
  float* total = ValueTotal(tile, args.records, block, kv_head);
  for (int32_t c = thread; c < d; c += kAppendThreads) {
    float key_sum = 0.0f;
    float value_sum = 0.0f;
    for (int32_t l = 0; l < shares.used_lanes(); ++l) {
      key_sum += scratch.keys[l * d + c];
      value_sum += scratch.values[l * d + c];
    }
    scratch.mean[c] = key_sum / static_cast<float>(b);
    total[c] = before != nullptr ? before[c] + value_sum : value_sum;
  }
  for (int32_t token = thread; token < b; token += kAppendThreads) {
    float norm = 0.0f;
    for (int32_t c = 0; c < chunks; ++c) norm += norm_shares[token * chunks + c];
    atomicMax(&scratch.max_norm, __float_as_int(norm));
  }
  __syncthreads();

  float largest[kChunk] = {};
  for (int32_t piece = lane; piece < pieces; piece += shares.lanes) {
    const int32_t end = shares.End(piece);
    float squares[kChunk] = {};
    for (int32_t token = shares.Begin(piece); token < end; ++token) {
      float key[kChunk];
      LoadKeyElements<T>(tile, head, token, i, key);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        const float distance = key[j] - scratch.mean[i + j];
        squares[j] += distance * distance;
      }
    }
#pragma unroll
    for (int j = 0; j < kChunk; ++j) largest[j] = fmaxf(largest[j], squares[j]);
  }
  if (lane < shares.lanes) StoreElements(largest, scratch.keys + lane * d + i);
  __syncthreads();

  float* rounded_mu = scratch.values;  // [d] each, for an 8-bit record
  float* rounded_sigma = scratch.values + d;
  for (int32_t c = thread; c < d; c += kAppendThreads) {
    float most = 0.0f;
    for (int32_t l = 0; l < shares.used_lanes(); l += shares.splits) {
      float squares = 0.0f;
      for (int32_t s = 0; s < shares.splits; ++s) squares += scratch.keys[(l + s) * d + c];
      most = fmaxf(most, squares);
    }
    const __half mu = __float2half_rn(scratch.mean[c]);
    const __half sigma = __float2half_rn(sqrtf(most / static_cast<float>(shares.part)));
    if (tile.narrow_index) {
      rounded_mu[c] = __half2float(mu);
      rounded_sigma[c] = __half2float(sigma);
    } else {
      reinterpret_cast<__half*>(record + tile.Mu(kv_head))[c] = mu;
      reinterpret_cast<__half*>(record + tile.Sigma(kv_head))[c] = sigma;
    }
  }
  const float max_norm = sqrtf(__int_as_float(scratch.max_norm));
  if (tile.narrow_index) {
    __syncthreads();
    if (thread < 32) {
      WriteNarrowVectors(tile, record, kv_head, rounded_mu, rounded_sigma, max_norm);
    }
  } else if (thread == 0) {
    *reinterpret_cast<float*>(record + tile.MaxNorm(kv_head)) = max_norm;
  }
  __syncthreads();  // the next record uses the same scratch memory
}

#endif

}  // namespace eta::cuda
