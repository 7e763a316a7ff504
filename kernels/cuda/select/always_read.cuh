// Relative thresholds of a warp's queries of sparse prefill (eta-semantics.md, "Relative
// thresholds"): the log-sum-exp of the scores of the keys that a row always reads and of what the
// records say of the other blocks.
//
// Keys are multiplied as records are (screen_bounds.cuh): 16 at a time, the queries as sums of two
// float16.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/float8.cuh"
#include "kernels/cuda/select/launch_prefill_screen.h"
#include "kernels/cuda/select/prefill_query_masks.cuh"
#include "kernels/cuda/select/screen_outlier.cuh"

namespace eta::cuda {

// The elements that a lane reads of its two keys, as float16: bfloat16 lose what float16 has not
// below 2^-24, and e4m3 are without their tokens' scales.
template <int D>
struct ScoredKeys {
  uint32_t pairs[2][D / 32][4];  // of key, chunk of 8 elements
  float scales[2];

  // Keys token .. token + 15 of a block; `head` is where its KV head begins (KvTile::K).
  __device__ __forceinline__ void Read(const KvTile& tile, DType dtype, const std::byte* head,
                                       int32_t token) {
    const int32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t own = token + lane / 4 + 8 * i;
      scales[i] = 1.0f;
      if (dtype == DType::kFloat8E4M3) {
        scales[i] = PowerOfTwo(reinterpret_cast<const int8_t*>(head + 2 * tile.tile_bytes())[own]);
      }
#pragma unroll
      for (int j = 0; j < D / 32; ++j) {
        const std::byte* from = head + tile.Element(own, (4 * j + lane % 4) * 8);
        if (dtype == DType::kFloat8E4M3) {
          const uint2 eight = *reinterpret_cast<const uint2*>(from);
          pairs[i][j][0] = WidenPair(eight.x & 0xffff);
          pairs[i][j][1] = WidenPair(eight.x >> 16);
          pairs[i][j][2] = WidenPair(eight.y & 0xffff);
          pairs[i][j][3] = WidenPair(eight.y >> 16);
          continue;
        }
        const uint4 eight = *reinterpret_cast<const uint4*>(from);
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          pairs[i][j][p] = Word(eight, p);
          if (dtype == DType::kBFloat16) {
            const float2 wide = UnpackPair<BFloat16>(pairs[i][j][p]);
            pairs[i][j][p] = PackPair<Half>(wide.x, wide.y);
          }
        }
      }
    }
  }
};

template <int HeadTiles>
struct RowSums {
  LogSum of_row[HeadTiles][2];  // of the lane's columns

  // Adds the scores of the keys that the rows always read.
  template <int D>
  __device__ __forceinline__ void AddAlwaysRead(const PrefillScreenArgs& args,
                                                const ColumnMasks<HeadTiles>& masks,
                                                const ScreenQueries<D, HeadTiles>& queries,
                                                const int32_t* table, int32_t kv_head) {
    if (masks.rows.num_rows == 0) return;
    const int32_t b = masks.block_size;
    const int32_t first_keys = masks.rows.position + 1;
    const int32_t last_keys = masks.rows.position + masks.rows.num_rows;
    const int32_t sinks = AlwaysReadOf(masks, last_keys / b).first * b;
    const int32_t pinned = max(AlwaysReadOf(masks, first_keys / b).end * b, sinks);
    // The loop divides nothing: that would take longer than the products.
    ReadKeys reads[HeadTiles][2];
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int32_t column = tile * 8 + static_cast<int32_t>(threadIdx.x % 4) * 2 + i;
        const AlwaysRead always = AlwaysReadOf(masks, masks.num_full[tile][i]);
        reads[tile][i] = {.sinks = always.first * b,
                          .pinned = always.end * b,
                          .end = column < masks.num_queries ? masks.NumKeys(column) : 0};
      }
    }
    const auto add = [&](int32_t block, int32_t end) {
      for (int32_t key = block * b; key < end; ++block) {
        const std::byte* head = args.tiles + args.tile.K(table[block], kv_head);
        for (int32_t token = 0; token < b && key < end; token += 16, key += 16) {
          ScoredKeys<D> keys;
          keys.Read(args.tile, args.dtype, head, token);
          AddScores(keys, reads, queries, key);
        }
      }
    };
    add(0, sinks);
    add(pinned / b, last_keys);
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) AddOfLanes(of_row[tile][i], 4, 32);
    }
  }

  // Adds the terms of blocks block .. block + 15.
  __device__ __forceinline__ void AddTerms(const ScreenMasses<HeadTiles>& of_blocks,
                                           const ColumnMasks<HeadTiles>& masks, int32_t block) {
    const int32_t own = block + static_cast<int32_t>(threadIdx.x % 32) / 4;
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int32_t num_full = masks.num_full[tile][i];
        const AlwaysRead always = AlwaysReadOf(masks, num_full);
        const bool counts[2] = {own < num_full && !always.Has(own),
                                own + 8 < num_full && !always.Has(own + 8)};
        of_row[tile][i].Add(SumOfTerms(of_blocks, tile, i, counts));
      }
    }
  }

  // Writes Lhat + c of every query. `thresholds` become what masses are compared with.
  __device__ __forceinline__ void WriteThresholds(const PrefillScreenArgs& args,
                                                  const ColumnMasks<HeadTiles>& masks,
                                                  const AttentionOptions& options,
                                                  float (&thresholds)[HeadTiles][2]) const {
    const int32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int32_t column = tile * 8 + lane % 4 * 2 + i;
        thresholds[tile][i] = INFINITY;
        if (column >= masks.num_queries) continue;
        LogSum mass = of_row[tile][i];
        if (args.sinks != nullptr) {
          mass.Add(args.sinks[masks.rows.kv_head * masks.group + column % masks.group] * kLog2E);
        }
        const float threshold = mass.Log() * kLn2 + options.relative_c;
        thresholds[tile][i] = (threshold - options.offset) * kLog2E;
        if (lane >= 4) continue;
        args.thresholds[masks.Row(column) * args.thresholds_stride +
                        masks.rows.kv_head * masks.group + column % masks.group] = threshold;
      }
    }
  }

 private:
  // The keys that a query always reads: [0, sinks) and [pinned, end).
  struct ReadKeys {
    int32_t sinks;
    int32_t pinned;
    int32_t end;

    __device__ __forceinline__ bool Has(int32_t key) const {
      return key < sinks || (key >= pinned && key < end);
    }
  };

  __device__ __forceinline__ static AlwaysRead AlwaysReadOf(const ColumnMasks<HeadTiles>& masks,
                                                            int32_t num_full) {
    return {masks.sink_blocks, masks.pinned_blocks, num_full};
  }

  template <int D>
  __device__ __forceinline__ void AddScores(const ScoredKeys<D>& keys,
                                            const ReadKeys (&reads)[HeadTiles][2],
                                            const ScreenQueries<D, HeadTiles>& q, int32_t key) {
    float products[HeadTiles][2][4] = {};
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const auto& first = keys.pairs[0][k / 2];
      const auto& last = keys.pairs[1][k / 2];
      const int at = k % 2 * 2;
      const uint32_t a[4] = {first[at], last[at], first[at + 1], last[at + 1]};
#pragma unroll
      for (int tile = 0; tile < HeadTiles; ++tile) {
        Mma<Half>(products[tile][0], a, q.high[tile][k][0], q.high[tile][k][1]);
        Mma<Half>(products[tile][1], a, q.low[tile][k][0], q.low[tile][k][1]);
      }
    }
    const int32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t own = key + lane / 4 + i / 2 * 8;
        if (!reads[tile][i % 2].Has(own)) continue;
        const float product = products[tile][0][i] + products[tile][1][i];
        of_row[tile][i % 2].Add(product * (q.scale[tile][i % 2] * kLog2E) * keys.scales[i / 2]);
      }
    }
  }
};

}  // namespace eta::cuda
