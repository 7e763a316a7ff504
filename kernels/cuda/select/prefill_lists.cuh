// What follows from the masks of sparse prefill (eta-semantics.md, "Sparse prefill"): the tokens
// that tiles of 64 rows read, and the lists of attention tiles (admitted_tiles.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/find_piece.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/prefill/admitted_tiles.h"
#include "kernels/cuda/select/prefill_parts.cuh"

namespace eta::cuda {

struct ListArgs {
  StepView step;
  const uint64_t* admitted;  // [R, HQ, words]
  int64_t words;
  AdmittedTiles lists;
  int32_t* tokens_read;  // [R, HKV]
  int32_t num_query_heads;
  int32_t num_kv_heads;
  int32_t block_size;
  int32_t list_tiles;  // attention tiles, whose CTAs come first; 0: there are no lists
};

// The tiles of 64 rows that a sequence's rows touch.
ETA_HOST_DEVICE int32_t ReadTiles(const StepSequence& sequence) {
  if (sequence.sparse == 0) return 0;
  return (sequence.position + sequence.num_rows - 1) / kPrefillTileRows -
         sequence.position / kPrefillTileRows + 1;
}

// Turns 32 rows of 32 bits, one per lane, by a diagonal: lane j gets bit j of every lane.
__device__ __forceinline__ uint32_t TransposeBits(uint32_t row) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t mask = 0x0000ffffu;
#pragma unroll
  for (uint32_t step = 16; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(~0u, row, step);
    row = (lane & step) == 0 ? (row & mask) | (other & mask) << step
                             : (row & ~mask) | (other & ~mask) >> step;
    mask ^= mask << (step / 2);
  }
  return row;
}

// Lists the key tiles that the 128 queries of attention tile `tile` attend to.
__device__ __forceinline__ void MakeList(const ListArgs& args, int32_t tile, int32_t kv_head) {
  __shared__ int32_t of_warps[2][kListWarps];
  const int32_t lane = threadIdx.x % 32;
  const int32_t warp = threadIdx.x / 32;
  const int32_t group = args.num_query_heads / args.num_kv_heads;
  const int32_t tile_rows = kTileQueries / group;
  const auto tiles_of = [&](const StepSequence& s) {
    return s.sparse != 0 ? AttentionTiles(s.num_rows, group) : 0;
  };
  const Piece piece =
      FindPiece(args.step.sequences, args.step.counts->num_sequences, tile, tiles_of);
  if (piece.sequence < 0) return;
  const StepSequence sequence = args.step.sequences[piece.sequence];
  WaitForPrevious();
  AllowNext();
  // In the order of FindTile (prefill_tile.cuh).
  const int32_t first_row = (tiles_of(sequence) - 1 - piece.index) * tile_rows;
  const int32_t rows = min(tile_rows, sequence.num_rows - first_row);
  const int32_t position = sequence.position + first_row;
  const int32_t b = args.block_size;
  const int32_t keys = position + rows;  // of the last row
  const int32_t num_blocks = (keys + b - 1) / b;
  const int32_t pieces = TilePieces(b);
  const int32_t entry_bytes = AdmittedTileBytes(pieces);
  const int64_t list = args.lists.List(tile, kv_head);
  std::byte* entries = args.lists.entries + list * args.lists.capacity * entry_bytes;

  // The lane's queries: 32 i + lane.
  const uint32_t* masks[4];
  int32_t own_keys[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t query = 32 * i + lane;
    const int32_t row = query / group;
    own_keys[i] = row < rows ? position + row + 1 : 0;
    masks[i] = reinterpret_cast<const uint32_t*>(
        args.admitted + ((sequence.row_begin + first_row + min(row, rows - 1)) *
                             static_cast<int64_t>(args.num_query_heads) +
                         kv_head * group + query % group) *
                            args.words);
  }
  int32_t count = 0;
  int side = 0;
  for (int32_t slab = 0; slab < num_blocks; slab += 32 * kListWarps, side ^= 1) {
    const int32_t word = slab / 32 + warp;
    uint32_t of_block[4];  // queries that attend to block 32 * word + lane
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t bits = own_keys[i] > 0 && word < 2 * args.words ? masks[i][word] : 0;
      const int32_t full = own_keys[i] / b;
      if (own_keys[i] % b != 0 && full / 32 == word) bits |= 1u << (full % 32);
      of_block[i] = TransposeBits(bits);
    }
    const int32_t block = 32 * word + lane;
    uint32_t any = of_block[0] | of_block[1] | of_block[2] | of_block[3];
    for (int32_t step = 1; step < pieces; step *= 2) any |= __shfl_xor_sync(~0u, any, step);
    // Blocks of 128 tokens are two key tiles.
    const int32_t key_tile = static_cast<int32_t>(static_cast<int64_t>(block) * b / kTileKeys);
    const bool leads = block % pieces == 0;
    const bool first = any != 0;
    const bool second = first && b > kTileKeys && (key_tile + 1) * kTileKeys < keys;
    const uint32_t firsts = __ballot_sync(~0u, first && leads);
    const uint32_t seconds = __ballot_sync(~0u, second);
    if (lane == 0) of_warps[side][warp] = __popc(firsts) + __popc(seconds);
    __syncthreads();
    const int32_t others = lane < kListWarps ? of_warps[side][lane] : 0;
    const uint32_t before = (1u << (lane / pieces * pieces)) - 1;
    const int32_t at = count + __reduce_add_sync(~0u, lane < warp ? others : 0) +
                       __popc(firsts & before) + __popc(seconds & before);
    count += __reduce_add_sync(~0u, others);
    if (!first) continue;
    for (int32_t half = 0; half < (second ? 2 : 1); ++half) {
      std::byte* entry = entries + static_cast<int64_t>(at + half) * entry_bytes;
      if (leads) *reinterpret_cast<AdmittedTile*>(entry) = {key_tile + half};
      *reinterpret_cast<uint4*>(entry + sizeof(AdmittedTile) + block % pieces * kPieceBytes) =
          make_uint4(of_block[0], of_block[1], of_block[2], of_block[3]);
    }
  }
  if (threadIdx.x == 0) args.lists.lists[list].key_tiles = count;
}

// Counts the tokens that a tile of 64 rows reads for one KV head, a token once for all its rows and
// heads.
__device__ __forceinline__ void CountTile(const ListArgs& args, int32_t tile, int32_t kv_head) {
  __shared__ int32_t tokens;
  const int32_t lane = threadIdx.x % 32;
  const int32_t warp = threadIdx.x / 32;
  const int32_t group = args.num_query_heads / args.num_kv_heads;
  const Piece piece = FindPiece(args.step.sequences, args.step.counts->num_sequences, tile,
                                [](const StepSequence& s) { return ReadTiles(s); });
  if (piece.sequence < 0) return;
  const StepSequence sequence = args.step.sequences[piece.sequence];
  WaitForPrevious();
  AllowNext();
  const int32_t tile_begin =
      (sequence.position / kPrefillTileRows + piece.index) * kPrefillTileRows;
  const int32_t first = max(tile_begin, sequence.position);
  const int32_t end = min(tile_begin + kPrefillTileRows, sequence.position + sequence.num_rows);
  const int32_t b = args.block_size;
  const int32_t first_keys = first + 1;
  const int32_t last_keys = end;
  const int64_t row = sequence.row_begin + first - sequence.position;
  if (threadIdx.x == 0) tokens = 0;
  __syncthreads();
  for (int32_t word = warp; word <= last_keys / b / 64; word += kListWarps) {
    uint64_t any = 0;
#pragma unroll 4
    for (int32_t query = lane; word < args.words && query < (end - first) * group; query += 32) {
      any |= args.admitted[((row + query / group) * args.num_query_heads + kv_head * group +
                            query % group) *
                               args.words +
                           word];
    }
    const uint64_t read =
        __reduce_or_sync(~0u, static_cast<uint32_t>(any)) |
        static_cast<uint64_t>(__reduce_or_sync(~0u, static_cast<uint32_t>(any >> 32))) << 32;
    if (lane != 0) continue;
    int32_t count = __popcll(read) * b;
    // Of a block that is only a tail, the tokens up to the last of its rows that has it as one.
    for (int32_t block = max(first_keys / b, 64 * word);
         block <= min(last_keys / b, 64 * word + 63); ++block) {
      if ((read >> (block % 64) & 1) != 0) continue;
      const int32_t last = min(last_keys, block * b + b - 1);
      if (last >= max(first_keys, block * b + 1)) count += last - block * b;
    }
    atomicAdd(&tokens, count);
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < end - first; i += kListThreads) {
    args.tokens_read[(row + i) * args.num_kv_heads + kv_head] = i == 0 ? tokens : 0;
  }
}

// A CTA per attention tile and KV head, then a CTA per tile of 64 rows and KV head.
__global__ void __launch_bounds__(kListThreads) ListKernel(const __grid_constant__ ListArgs args) {
  const auto index = static_cast<int32_t>(blockIdx.x / static_cast<uint32_t>(args.num_kv_heads));
  const auto kv_head = static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(args.num_kv_heads));
  if (index < args.list_tiles) {
    MakeList(args, index, kv_head);
    PlanParts(args.lists, args.list_tiles * args.num_kv_heads);
  } else {
    CountTile(args, index - args.list_tiles, kv_head);
  }
}

}  // namespace eta::cuda
