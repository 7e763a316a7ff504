// Compaction of SelectBlocks: turns the masks that screening wrote (screen.cuh) into lists. For
// rows with relative thresholds it first finds the thresholds and from the masses the masks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/step_view.h"
#include "kernels/cuda/select/row_threshold.cuh"
#include "kernels/cuda/select/screen.cuh"
#include "kernels/params/selection.h"

namespace eta::cuda {

inline constexpr int kPackThreads = 512;
inline constexpr int kPackWarps = kPackThreads / 32;
inline constexpr int kPackPerThread = 4;

struct PackArgs {
  StepView step;
  BlockSelection selection;
  const uint32_t* masks;  // [rows, HKV, capacity] heads by block: selection.heads, as screening
                          // left it, or what the host chose
  uint32_t* pool_blocks;  // [rows, HKV, capacity]: the pool's blocks of selection.blocks
  unsigned long long* best;
  int32_t* tokens_attended;
  int32_t* tokens_read;
  int32_t* values_read;  // null: no row has confirmed reads
  int32_t num_query_heads;
  int32_t num_kv_heads;
  int32_t block_size;
  RowMassArgs mass;  // for rows with relative thresholds
};

// Adds to head_blocks[head] the number of the warp's masks that have the bit of `head`.
__device__ __forceinline__ void CountHeads(const uint32_t (&masks)[kPackPerThread], int32_t group,
                                           int32_t* head_blocks) {
  const int lane = threadIdx.x % 32;
  for (int32_t first = 0; first < group; first += 8) {
    // Eight bits become eight nibbles; their sums over the warp take a byte each.
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kPackPerThread; ++i) {
      uint32_t bits = (masks[i] >> first) & 0xffu;
      bits = (bits | bits << 12) & 0x000f000fu;
      bits = (bits | bits << 6) & 0x03030303u;
      sum += (bits | bits << 3) & 0x11111111u;
    }
    static_assert(kPackPerThread * 32 < 256);
    const uint32_t even = __reduce_add_sync(0xffffffffu, sum & 0x0f0f0f0fu);
    const uint32_t odd = __reduce_add_sync(0xffffffffu, (sum >> 4) & 0x0f0f0f0fu);
    const uint32_t count = ((lane % 2 == 0 ? even : odd) >> (lane / 2 * 8 % 32)) & 0xffu;
    if (lane < 8 && count != 0) atomicAdd(&head_blocks[first + lane], static_cast<int32_t>(count));
  }
}

// Steps 3 to 5 of the selection, and the counts. One CTA per (row, KV head) packs the masks into a
// list, in place. What it reads before WaitForPrevious() was there before the step's first kernel,
// or before screening. With kRelative there may be rows with relative thresholds; T is the type of
// the cache. With kChosen the masks are the host's choice, and nothing is pinned or rescued.
template <typename T, bool kRelative, bool kChosen = false>
__global__ void __launch_bounds__(kPackThreads) PackKernel(const __grid_constant__ PackArgs args) {
  __shared__ uint32_t admitted_early;  // heads that admit one of the first rescue_chunk blocks
  __shared__ int32_t head_blocks[kMaxGroup];
  __shared__ int32_t warp_blocks[2][kPackWarps];
  const int64_t list = blockIdx.x;
  const auto row_index =
      static_cast<int32_t>(blockIdx.x / static_cast<uint32_t>(args.num_kv_heads));
  const auto kv_head = static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(args.num_kv_heads));
  const volatile StepRow& row = args.step.rows[row_index];
  const RowRole role = row.role;
  const int32_t num_tokens = row.position + 1;
  const int32_t sink_blocks = kChosen ? 0 : row.attention.sink_blocks;
  const int32_t pinned_blocks = kChosen ? 0 : row.attention.pinned_blocks;
  const int32_t rescue_chunk = kChosen ? 0 : row.attention.rescue_chunk;
  const bool shared_reads = row.attention.shared_reads;
  const bool admit_all = row.attention.admit_all;
  const int32_t* table = args.step.tables + row.table_begin;
  const int32_t group = args.num_query_heads / args.num_kv_heads;
  const int64_t first_head = static_cast<int64_t>(row_index) * args.num_query_heads +
                             static_cast<int64_t>(kv_head) * group;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % 32;
  const int32_t warp = thread / 32;
  const int32_t num_full = num_tokens / args.block_size;
  const int32_t tail = num_tokens % args.block_size;
  const AlwaysRead always(sink_blocks, pinned_blocks, num_full);
  if (thread < kMaxGroup) head_blocks[thread] = 0;
  if (thread == 0) admitted_early = 0;
  extern __shared__ __align__(16) float queries[];
  [[maybe_unused]] __shared__ __align__(16) RowMass<kRelative ? kPackWarps : 1> mass;
  const bool relative = kRelative && row.attention.relative && role == RowRole::kDecode;
  [[maybe_unused]] const RowList at = {row_index, kv_head, group, num_full, tail, table};
  if constexpr (kRelative) {
    if (relative) SumAlwaysRead<T>(args.mass, at, always, queries, mass);
  }
  __syncthreads();
  WaitForPrevious();
  AllowNext();
  if (role != RowRole::kDecode) {
    if (thread == 0) args.selection.counts[list] = 0;
    return;
  }
  if constexpr (kRelative) {
    if (relative)
      FindThresholds(args.mass, at, row.attention.relative_c, row.attention.offset, mass);
  }
  if (admit_all) {
    if (thread == 0) {
      args.selection.counts[list] = num_full;
      args.tokens_read[list] = num_tokens;
      if (args.values_read != nullptr) args.values_read[list] = num_tokens;
    }
    if (thread < group) {
      args.tokens_attended[first_head + thread] = num_tokens;
      if (relative) args.best[first_head + thread] = 0;  // such a row is screened nevertheless
    }
    return;
  }

  const uint32_t* admitted = args.masks + list * args.selection.capacity;
  uint32_t* heads = args.selection.heads + list * args.selection.capacity;
  uint32_t* blocks = args.selection.blocks + list * args.selection.capacity;
  const uint32_t all = group == 32 ? 0xffffffffu : (1u << group) - 1;
  const int32_t chunk = min(max(rescue_chunk, 0), num_full);
  constexpr int32_t kSlab = kPackThreads * kPackPerThread;
  const int32_t own = warp * 32 * kPackPerThread + lane;  // the lane's first block of a slab
  [[maybe_unused]] const float* masses =
      relative ? args.mass.masses.Masses(list) : nullptr;  // of this list
  const auto load = [&](int32_t first, uint32_t(&masks)[kPackPerThread],
                        int32_t(&places)[kPackPerThread]) {
#pragma unroll
    for (int32_t i = 0; i < kPackPerThread; ++i) {
      const int32_t block = first + 32 * i;
      masks[i] = relative || always.Has(block) ? 0 : admitted[block];
      places[i] = block < num_full ? table[block] : 0;
    }
    if constexpr (kRelative) {
      if (relative) AdmitByMass(args.mass.masses, masses, mass, always, first, 32, masks);
    }
  };
  const auto pin = [&](int32_t first, uint32_t(&masks)[kPackPerThread]) {
#pragma unroll
    for (int32_t i = 0; i < kPackPerThread; ++i) {
      const int32_t block = first + 32 * i;
      if (always.Has(block) && block < num_full) masks[i] = all;
    }
  };
  uint32_t masks[kPackPerThread];
  int32_t places[kPackPerThread];  // the pool's blocks
  load(own, masks, places);
  uint32_t* pool_blocks = args.pool_blocks + list * args.selection.capacity;
  const int32_t best_block = lane < group ? BlockOfKey(args.best[first_head + lane]) : -1;

  pin(own, masks);
  uint32_t early = 0;
#pragma unroll
  for (int32_t i = 0; i < kPackPerThread; ++i) {
    if (own + 32 * i < chunk) early |= masks[i];
  }
#pragma unroll 1
  for (int32_t block = kSlab + thread; block < chunk; block += kPackThreads) {
    uint32_t of_block[1] = {all};
    if (!always.Has(block)) {
      if constexpr (kRelative) {
        if (relative) AdmitByMass(args.mass.masses, masses, mass, always, block, 1, of_block);
      }
      if (!relative) of_block[0] = admitted[block];
    }
    early |= of_block[0];
  }
  early = __reduce_or_sync(0xffffffffu, early);
  if (lane == 0 && early != 0) atomicOr(&admitted_early, early);
  __syncthreads();
  const uint32_t to_rescue = chunk > 0 ? all & ~admitted_early : 0u;

  int32_t count = 0;
  int side = 0;
  for (int32_t slab = 0; slab < num_full; slab += kSlab) {
    const int32_t first = slab + own;
    for (uint32_t rest = to_rescue; rest != 0; rest &= rest - 1) {
      const int32_t head = __ffs(static_cast<int32_t>(rest)) - 1;
      const int32_t rescued = __shfl_sync(0xffffffffu, best_block, head);
#pragma unroll
      for (int32_t i = 0; i < kPackPerThread; ++i) {
        if (rescued == first + 32 * i) masks[i] |= 1u << head;
      }
    }
    uint32_t present[kPackPerThread];
    int32_t in_warp = 0;
#pragma unroll
    for (int32_t i = 0; i < kPackPerThread; ++i) {
      present[i] = __ballot_sync(0xffffffffu, masks[i] != 0);
      in_warp += __popc(present[i]);
    }
    if (lane == 0) warp_blocks[side][warp] = in_warp;
    if (in_warp != 0) CountHeads(masks, group, head_blocks);
    uint32_t next[kPackPerThread];
    int32_t next_places[kPackPerThread];
    load(first + kSlab, next, next_places);
    // After this barrier every mask of the slab is in registers. So the list may overwrite the
    // masks: it is never longer than what was read.
    __syncthreads();
    const int32_t others = lane < kPackWarps ? warp_blocks[side][lane] : 0;
    int32_t at = count + __reduce_add_sync(0xffffffffu, lane < warp ? others : 0);
    count += __reduce_add_sync(0xffffffffu, others);
#pragma unroll
    for (int32_t i = 0; i < kPackPerThread; ++i) {
      if (masks[i] != 0) {
        const int32_t to = at + __popc(present[i] & ((1u << lane) - 1));
        blocks[to] = static_cast<uint32_t>(first + 32 * i);
        pool_blocks[to] = static_cast<uint32_t>(places[i]);
        heads[to] = shared_reads ? all : masks[i];
      }
      at += __popc(present[i]);
      masks[i] = next[i];
      places[i] = next_places[i];
    }
    pin(first + kSlab, masks);
    side ^= 1;
  }
  if (thread == 0) {
    args.selection.counts[list] = count;
    args.tokens_read[list] = count * args.block_size + tail;
    // Of the blocks of a row with confirmed reads, ConfirmReads adds those that are kept.
    if (args.values_read != nullptr) {
      args.values_read[list] = (row.attention.confirm ? 0 : count * args.block_size) + tail;
    }
  }
  if (thread < group) {
    args.tokens_attended[first_head + thread] = head_blocks[thread] * args.block_size + tail;
    args.best[first_head + thread] = 0;
    if (row.attention.confirm) {
      args.selection.rescued[first_head + thread] =
          (to_rescue >> thread & 1) != 0 ? best_block : -1;
    }
  }
}

}  // namespace eta::cuda
