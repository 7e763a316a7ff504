// Relative thresholds of one row and KV head (eta-semantics.md, "Relative thresholds"), by a whole
// CTA: the scores of the keys that are always read, and with the sums that screening left the
// row's log-sum-exp.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/select/block_mass.cuh"
#include "kernels/cuda/select/plain_products.cuh"
#include "kernels/cuda/select/screen.cuh"

namespace eta::cuda {

struct RowMassArgs {
  const float* q;
  int64_t q_stride;
  float* thresholds;
  int64_t thresholds_stride;
  const std::byte* tiles;
  KvTile tile;
  float softmax_scale;
  MassScratch masses;
  const float* sinks;  // [HQ] or null
};

// In shared memory.
template <int kWarps>
struct RowMass {
  float of_warps[kWarps][kMaxGroup];  // log-sum-exp of the always-read keys that a warp took
  float thresholds[kMaxGroup];        // tau_eff log2 e; NaN after the group
};

// The row and KV head that a CTA has.
struct RowList {
  int32_t row;
  int32_t kv_head;
  int32_t group;
  int32_t num_full;
  int32_t tail;
  const int32_t* table;

  __device__ __forceinline__ int64_t list(int32_t num_kv_heads) const {
    return static_cast<int64_t>(row) * num_kv_heads + kv_head;
  }
};

// Scores the keys that the row always reads. `queries`: shared memory for the group's queries, up
// to a multiple of 4. What it reads was complete before screening began. All threads call it.
template <typename T, int kWarps>
__device__ __forceinline__ void SumAlwaysRead(const RowMassArgs& args, const RowList& at,
                                              const AlwaysRead& always, float* queries,
                                              RowMass<kWarps>& mass) {
  const KvTile& tile = args.tile;
  const int32_t d = tile.head_dim;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % 32;
  const int32_t padded_group = (at.group + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce;
  const float* q =
      args.q + at.row * args.q_stride + static_cast<int64_t>(at.kv_head) * at.group * d;
  for (int32_t i = thread; i < padded_group * d; i += 32 * kWarps) {
    queries[i] = i < at.group * d ? q[i] : 0.0f;
  }
  if (thread < kMaxGroup) mass.thresholds[thread] = NAN;
  __syncthreads();
  const int32_t pinned = at.num_full - always.end;
  const int32_t keys = (always.first + pinned) * tile.block_size + at.tail;
  const float scale = args.softmax_scale * kLog2E;
  LogSum of_head;  // of head `lane`
  for (int32_t first = thread - lane; first < keys; first += 32 * kWarps) {
    const bool valid = first + lane < keys;
    const int32_t i = valid ? first + lane : first;
    const int32_t entry = i / tile.block_size;
    // The tail follows the pinned blocks.
    const int32_t block = entry < always.first ? entry : always.end + entry - always.first;
    const std::byte* key_tile = args.tiles + tile.K(at.table[block], at.kv_head);
    for (int32_t head = 0; head < at.group; head += kHeadsAtOnce) {
      float products[kHeadsAtOnce];
      MultiplyKey<T>(tile, key_tile, i % tile.block_size, queries + head * d, products);
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h) {
        if (head + h >= at.group) break;
        const float score = valid ? products[h] * scale : -INFINITY;
        LogSum of_keys = {score, 0.0f};
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
          of_keys.max = fmaxf(of_keys.max, __shfl_xor_sync(~0u, of_keys.max, step));
        }
        of_keys.sum = valid ? Exp2(score - of_keys.max) : 0.0f;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
          of_keys.sum += __shfl_xor_sync(~0u, of_keys.sum, step);
        }
        if (lane == head + h) of_head.Add(of_keys);
      }
    }
  }
  mass.of_warps[thread / 32][lane] = of_head.Log();
}

// Writes Lhat + c of every head of the group. The sums are added in one order, whatever CTA left
// them. REQUIRES: screening has ended. All threads call it, and it ends with a __syncthreads().
template <int kWarps>
__device__ __forceinline__ void FindThresholds(const RowMassArgs& args, const RowList& at, float c,
                                               float offset, RowMass<kWarps>& mass) {
  const int32_t lane = threadIdx.x % 32;
  const int64_t list = at.list(args.tile.num_kv_heads);
  const int32_t pieces = (at.num_full + kMassBlocks - 1) / kMassBlocks;
  __syncthreads();
  for (int32_t head = threadIdx.x / 32; head < at.group; head += kWarps) {
    const float* sums = args.masses.sums + (list * at.group + head) * args.masses.pieces;
    LogSum of_row;
#pragma unroll 4
    for (int32_t piece = lane; piece < pieces; piece += 32) of_row.Add(sums[piece]);
    if (lane < kWarps) of_row.Add(mass.of_warps[lane][head]);
    if (lane == 0 && args.sinks != nullptr) {
      of_row.Add(args.sinks[at.kv_head * at.group + head] * kLog2E);
    }
    AddOfLanes(of_row, 1, 32);
    if (lane != 0) continue;
    const float threshold = of_row.Log() * kLn2 + c;
    args.thresholds[at.row * args.thresholds_stride + at.kv_head * at.group + head] = threshold;
    mass.thresholds[head] = (threshold - offset) * kLog2E;
  }
  __syncthreads();
}

// The heads that admit each of kBlocks blocks: block, block + step and so on, as far as they are
// not always read.
template <int kBlocks, int kWarps>
__device__ __forceinline__ void AdmitByMass(const MassScratch& scratch, const float* of_list,
                                            const RowMass<kWarps>& mass, const AlwaysRead& always,
                                            int32_t block, int32_t step,
                                            uint32_t (&masks)[kBlocks]) {
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) masks[i] = 0;
  for (int32_t head = 0; head < scratch.stride; head += 2) {
    const float2 threshold = *reinterpret_cast<const float2*>(mass.thresholds + head);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const int32_t at = block + i * step;
      if (always.Has(at)) continue;
      const float2 of_block = *reinterpret_cast<const float2*>(
          of_list + static_cast<int64_t>(at) * scratch.stride + head);
      masks[i] |= (of_block.x >= threshold.x ? 1u : 0u) << head |
                  (of_block.y >= threshold.y ? 2u : 0u) << head;
    }
  }
}

}  // namespace eta::cuda
