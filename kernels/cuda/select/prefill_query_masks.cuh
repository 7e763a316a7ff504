// The masks of a warp's queries of sparse prefill: which full blocks each attends to
// (eta-semantics.md, "Selection", steps 2 to 5). Column c of the warp's products is head c % G of
// row c / G. Lane c keeps the mask of column c, a word of 64 blocks at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/select/launch_prefill_screen.h"
#include "kernels/cuda/select/screen.cuh"

namespace eta::cuda {

// Neighbouring rows of one sequence.
struct ScreenedRows {
  int32_t row;  // in the step
  int32_t num_rows;
  int32_t position;
  int32_t kv_head;
};

// Bits [begin, end) of word `word` of a mask.
__device__ __forceinline__ uint64_t BitsOfWord(int32_t word, int32_t begin, int32_t end) {
  const auto below = [&](int32_t bit) {
    const int32_t at = min(max(bit - 64 * word, 0), 64);
    return at == 64 ? ~uint64_t{0} : (uint64_t{1} << at) - 1;
  };
  return below(end) & ~below(begin);
}

// Bits 0, 4, 8, ... of `bits` side by side.
__device__ __forceinline__ uint32_t EveryFourthBit(uint32_t bits) {
  bits &= 0x11111111u;
  bits = (bits | bits >> 3) & 0x03030303u;
  bits = (bits | bits >> 6) & 0x000f000fu;
  return (bits | bits >> 12) & 0xffu;
}

template <int HeadTiles>
struct QueryMasks {
  int32_t group;
  int32_t num_queries;
  ScreenedRows rows;
  int32_t sink_blocks;
  int32_t pinned_blocks;
  int32_t rescue_chunk;
  int32_t block_size;
  bool shared_reads;
  // Of the lane's four columns: N, and the best bound's key among the first blocks.
  int32_t num_full[HeadTiles][2];
  uint64_t best[HeadTiles][2] = {};
  // Of column `lane`:
  bool is_query;
  int32_t own_full;      // N
  uint64_t word = 0;     // the blocks that it admits
  bool early = false;    // it attends to one of the first blocks
  int32_t attended = 0;  // blocks that it admits itself, pinned ones and sinks too
  int32_t seen = 0;      // blocks of its mask

  __device__ __forceinline__ QueryMasks(const PrefillScreenArgs& args, const ScreenedRows& of,
                                        const StepRow& options)
      : group(args.group()),
        num_queries(of.num_rows * group),
        rows(of),
        sink_blocks(options.sink_blocks),
        pinned_blocks(options.pinned_blocks),
        rescue_chunk(options.rescue_chunk),
        block_size(args.tile.block_size),
        shared_reads(options.shared_reads != 0) {
    const int32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) num_full[tile][i] = FullBlocks(tile * 8 + lane % 4 * 2 + i);
    }
    is_query = lane < num_queries;
    own_full = FullBlocks(lane);
  }

  __device__ __forceinline__ int64_t Row(int32_t column) const {
    return rows.row + column / group;
  }
  __device__ __forceinline__ int32_t NumKeys(int32_t column) const {
    return rows.position + column / group + 1;
  }
  // 0 for columns after the last query.
  __device__ __forceinline__ int32_t FullBlocks(int32_t column) const {
    return column < num_queries ? NumKeys(column) / block_size : 0;
  }
  __device__ __forceinline__ int32_t Chunk(int32_t full_blocks) const {
    return min(max(rescue_chunk, 0), full_blocks);
  }

  // Notes which queries admit blocks block .. block + 15. Indices are those of bounds.
  __device__ __forceinline__ void Add(const float (&values)[HeadTiles][4],
                                      const float (&thresholds)[HeadTiles][2], int32_t block) {
    const int32_t lane = threadIdx.x % 32;
    uint32_t low = 0;  // the votes of the first and of the last eight blocks
    uint32_t high = 0;
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t first = __ballot_sync(~0u, values[tile][i] >= thresholds[tile][i]);
        const uint32_t last = __ballot_sync(~0u, values[tile][i + 2] >= thresholds[tile][i]);
        if (lane / 8 == tile && lane % 2 == i) {
          low = first;
          high = last;
        }
      }
    }
    const int32_t place = lane % 8 / 2;
    const uint32_t bits = EveryFourthBit(low >> place) | EveryFourthBit(high >> place) << 8;
    word |= static_cast<uint64_t>(bits) << (block % 64);
    if (block >= rescue_chunk) return;
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t at = block + lane / 4 + i / 2 * 8;
        if (at < Chunk(num_full[tile][i % 2])) {
          best[tile][i % 2] = max(best[tile][i % 2], BoundKey(values[tile][i], at));
        }
      }
    }
  }

  // Writes word `at` of the masks; all of its blocks were added.
  __device__ __forceinline__ void Store(const PrefillScreenArgs& args, int32_t at) {
    const AlwaysRead always(sink_blocks, pinned_blocks, own_full);
    uint64_t mask = (word & BitsOfWord(at, 0, own_full)) | BitsOfWord(at, 0, always.first) |
                    BitsOfWord(at, always.end, own_full);
    word = 0;
    if (!is_query) mask = 0;
    early = early || (mask & BitsOfWord(at, 0, Chunk(own_full))) != 0;
    attended += __popcll(mask);
    if (shared_reads) mask = OfRow(mask);
    seen += __popcll(mask);
    if (is_query) Masks(args)[at] = mask;
  }

  // Rescues, counts, and writes the words from `begin` on.
  __device__ __forceinline__ void Finish(const PrefillScreenArgs& args, int32_t begin) {
    const int32_t lane = threadIdx.x % 32;
    const int32_t block = BestBlock();
    const bool rescues = is_query && !early && Chunk(own_full) > 0;
    if (rescues) ++attended;
    for (int32_t g = 0; g < (shared_reads ? group : 1); ++g) {
      int32_t rescued = rescues ? block : -1;
      if (shared_reads) rescued = __shfl_sync(~0u, rescued, lane / group * group + g);
      if (!is_query || rescued < 0) continue;
      uint64_t& mask = Masks(args)[rescued / 64];
      const uint64_t bit = uint64_t{1} << (rescued % 64);
      if ((mask & bit) == 0) ++seen;
      mask |= bit;
    }
    if (is_query) {
      const int64_t at = Query(args, lane);
      args.tokens_attended[at] = NumKeys(lane) - (own_full - attended) * block_size;
      args.prunes[at] = seen < own_full ? 1 : 0;
    }
    for (int32_t column = 0; column < num_queries; ++column) {
      uint64_t* masks = args.admitted + Query(args, column) * args.words;
      for (int64_t i = begin + lane; i < args.words; i += 32) masks[i] = 0;
    }
  }

 private:
  __device__ __forceinline__ int64_t Query(const PrefillScreenArgs& args, int32_t column) const {
    return Row(column) * args.num_query_heads + rows.kv_head * group + column % group;
  }
  __device__ __forceinline__ uint64_t* Masks(const PrefillScreenArgs& args) const {
    return args.admitted + Query(args, static_cast<int32_t>(threadIdx.x % 32)) * args.words;
  }

  // What any head of the lane's row has.
  __device__ __forceinline__ uint64_t OfRow(uint64_t mask) const {
    const int32_t first = static_cast<int32_t>(threadIdx.x % 32) / group * group;
    uint64_t any = 0;
    for (int32_t g = 0; g < group; ++g) {
      any |= __shfl_sync(~0u, static_cast<unsigned long long>(mask), first + g);
    }
    return any;
  }

  // The block with the best bound of column `lane`.
  __device__ __forceinline__ int32_t BestBlock() {
    const int32_t lane = threadIdx.x % 32;
    uint64_t own = 0;
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        auto key = static_cast<unsigned long long>(best[tile][i]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) key = max(key, __shfl_xor_sync(~0u, key, step));
        key = __shfl_sync(~0u, key, lane % 8 / 2);
        if (lane / 8 == tile && lane % 2 == i) own = key;
      }
    }
    return BlockOfKey(own);
  }
};

}  // namespace eta::cuda
