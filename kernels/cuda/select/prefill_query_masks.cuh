// The masks of a warp's queries of sparse prefill: which full blocks each attends to
// (eta-semantics.md, "Selection", steps 2 to 5). Column c of the warp's queries is head c % G of
// row c / G. Lane c keeps the mask of column c, a word of 64 blocks at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/find_piece.cuh"
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

// What a CTA takes: rows [begin, end) of one sequence for one KV head. A warp has a few of them.
// The step's rows were there before the kernel before this one.
struct ScreenWork {
  StepSequence sequence;  // without rows: there is nothing to do
  int32_t begin;
  int32_t end;
  int32_t kv_head;

  __device__ __forceinline__ explicit ScreenWork(const PrefillScreenArgs& args) {
    const auto num_kv_heads = static_cast<uint32_t>(args.tile.num_kv_heads);
    const auto pieces_of = [&](const StepSequence& s) { return args.Pieces(s); };
    const Piece piece = FindPiece(args.step.sequences, args.step.counts->num_sequences,
                                  static_cast<int32_t>(blockIdx.x / num_kv_heads), pieces_of);
    kv_head = static_cast<int32_t>(blockIdx.x % num_kv_heads);
    sequence.num_rows = 0;
    if (piece.sequence < 0) return;
    sequence = args.step.sequences[piece.sequence];
    // The last rows, which have most blocks, come first.
    begin = (pieces_of(sequence) - 1 - piece.index) * args.cta_rows();
    end = min(begin + args.cta_rows(), sequence.num_rows);
  }

  // Of the last row.
  __device__ __forceinline__ int32_t FullBlocks(const PrefillScreenArgs& args) const {
    return (sequence.position + end) / args.tile.block_size;
  }
  __device__ __forceinline__ ScreenedRows RowsOfWarp(const PrefillScreenArgs& args) const {
    const int32_t first = begin + static_cast<int32_t>(threadIdx.x / 32) * args.warp_rows;
    return {.row = sequence.row_begin + first,
            .num_rows = max(0, min(args.warp_rows, end - first)),
            .position = sequence.position + first,
            .kv_head = kv_head};
  }
};

// Bits 0, 4, 8, ... of `bits` side by side.
__device__ __forceinline__ uint32_t EveryFourthBit(uint32_t bits) {
  bits &= 0x11111111u;
  bits = (bits | bits >> 3) & 0x03030303u;
  bits = (bits | bits >> 6) & 0x000f000fu;
  return (bits | bits >> 12) & 0xffu;
}

struct QueryMasks {
  int32_t group;
  int32_t num_queries;
  ScreenedRows rows;
  int32_t sink_blocks;
  int32_t pinned_blocks;
  int32_t rescue_chunk;
  int32_t block_size;
  bool shared_reads;
  // Of column `lane`:
  bool is_query;
  int32_t first_lane;    // of its row
  int64_t query;         // [R, HQ]
  int32_t own_full;      // N
  int32_t own_chunk;     // blocks that count for the rescue
  AlwaysRead always;     // blocks that it reads in any case
  uint64_t word = 0;     // the blocks that it admits
  bool early = false;    // it attends to one of the first blocks
  int32_t attended = 0;  // blocks that it admits itself, pinned ones and sinks too
  int32_t seen = 0;      // blocks of its mask

  __device__ __forceinline__ QueryMasks(const PrefillScreenArgs& args, const ScreenedRows& of,
                                        const AttentionOptions& options)
      : group(args.group()),
        num_queries(of.num_rows * group),
        rows(of),
        sink_blocks(options.sink_blocks),
        pinned_blocks(options.pinned_blocks),
        rescue_chunk(options.rescue_chunk),
        block_size(args.tile.block_size),
        shared_reads(options.shared_reads),
        is_query(Lane() < num_queries),
        own_full(FullBlocks(Lane())),
        own_chunk(Chunk(own_full)),
        always(sink_blocks, pinned_blocks, own_full) {
    const int32_t row = Lane() / group;
    first_lane = row * group;
    query = static_cast<int64_t>(rows.row + row) * args.num_query_heads + rows.kv_head * group +
            Lane() - first_lane;
  }

  __device__ __forceinline__ int64_t Row(int32_t column) const { return rows.row + column / group; }
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

  // Whether column `lane` may have to rescue: none of its first blocks is always read.
  __device__ __forceinline__ bool MayRescue() const {
    return is_query && always.first == 0 && always.end >= own_chunk;
  }

  // Writes word `at` of the masks; all of its blocks were added.
  __device__ __forceinline__ void Store(const PrefillScreenArgs& args, int32_t at) {
    uint64_t mask = word;
    word = 0;
    if (64 * at < always.first || 64 * at + 64 > always.end) {
      mask = (mask & BitsOfWord(at, 0, own_full)) | BitsOfWord(at, 0, always.first) |
             BitsOfWord(at, always.end, own_full);
    }
    if (!is_query) mask = 0;
    if (64 * at < own_chunk) early = early || (mask & BitsOfWord(at, 0, own_chunk)) != 0;
    attended += __popcll(mask);
    if (shared_reads) mask = OfRow(mask);
    seen += __popcll(mask);
    if (is_query) Masks(args)[at] = mask;
  }

  // Rescues, counts, and writes the words from `begin` on. `block`: the one with the best bound of
  // column `lane` among the first blocks.
  __device__ __forceinline__ void Finish(const PrefillScreenArgs& args, int32_t begin,
                                         int32_t block) {
    const int32_t lane = threadIdx.x % 32;
    const bool rescues = is_query && !early && own_chunk > 0;
    if (rescues) ++attended;
    for (int32_t g = 0; g < (shared_reads ? group : 1); ++g) {
      int32_t rescued = rescues ? block : -1;
      if (shared_reads) rescued = __shfl_sync(~0u, rescued, first_lane + g);
      if (!is_query || rescued < 0) continue;
      uint64_t& mask = Masks(args)[rescued / 64];
      const uint64_t bit = uint64_t{1} << (rescued % 64);
      if ((mask & bit) == 0) ++seen;
      mask |= bit;
    }
    if (is_query) {
      for (int64_t i = begin; i < args.words; ++i) Masks(args)[i] = 0;
      args.tokens_attended[query] = NumKeys(lane) - (own_full - attended) * block_size;
      args.prunes[query] = seen < own_full ? 1 : 0;
    }
  }

 private:
  __device__ __forceinline__ static int32_t Lane() {
    return static_cast<int32_t>(threadIdx.x % 32);
  }
  __device__ __forceinline__ uint64_t* Masks(const PrefillScreenArgs& args) const {
    return args.admitted + query * args.words;
  }

  // What any head of the lane's row has.
  __device__ __forceinline__ uint64_t OfRow(uint64_t mask) const {
    uint64_t any = mask;
    if ((group & (group - 1)) == 0) {
      for (int32_t step = 1; step < group; step *= 2) {
        any |= __shfl_xor_sync(~0u, static_cast<unsigned long long>(any), step);
      }
      return any;
    }
    for (int32_t g = 0; g < group; ++g) {
      any |= __shfl_sync(~0u, static_cast<unsigned long long>(mask), first_lane + g);
    }
    return any;
  }
};

// The same where columns are those of products (mma.cuh's C: rows are blocks).
template <int HeadTiles>
struct ColumnMasks : QueryMasks {
  // Of the lane's four columns: N, and the best bound's key among the first blocks.
  int32_t num_full[HeadTiles][2];
  uint64_t best[HeadTiles][2] = {};

  __device__ __forceinline__ ColumnMasks(const PrefillScreenArgs& args, const ScreenedRows& of,
                                         const AttentionOptions& options)
      : QueryMasks(args, of, options) {
    const int32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) num_full[tile][i] = FullBlocks(tile * 8 + lane % 4 * 2 + i);
    }
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

  __device__ __forceinline__ void Finish(const PrefillScreenArgs& args, int32_t begin) {
    QueryMasks::Finish(args, begin, BestBlock());
  }

 private:
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
