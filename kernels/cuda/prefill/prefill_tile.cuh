// The work of one CTA of prefill attention, for every kernel: a tile of 128 queries against a range
// of keys. The queries are the G heads of one KV head for 128 / G consecutive rows of a sequence
// (query i is head i % G of row i / G). So every key that is read serves the whole group. A range
// is cut into parts only if there are too few tiles to fill the device. Each part then leaves its
// sums in memory, and MergeParts (prefill_attention.cu) joins them in ascending order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/host/step_view.h"

namespace eta::cuda {

inline constexpr int32_t kTileQueries = 128;
inline constexpr int32_t kTileKeys = 64;
// A part with fewer key tiles costs more to start and merge than it saves.
inline constexpr int32_t kMinPartTiles = 16;

struct PrefillParams {
  StepView step;
  const StepSequence* sequences;  // the step's sequences, or some neighbours among them
  int32_t num_sequences;
  const int32_t* tables;  // their block tables
  int32_t tables_begin;   // the StepSequence::table_begin that is tables[0]
  const float* q;
  int64_t q_stride;
  const float* thresholds;
  int64_t thresholds_stride;
  const std::byte* tiles;
  void* out;
  int64_t out_stride;
  DType out_dtype;
  KvGeometry geometry;
  int32_t group;        // G
  int32_t tile_tokens;  // rows of a tile: kTileQueries / G
  int32_t max_parts;    // parts that a tile's keys may be cut into
  float softmax_scale;
  float beta;
  bool gated;
  bool calibrates;  // true: tiles are of sequences that calibrate only
  float* partials;  // [tile, HKV, max_parts], each with a Part's arrays
};

struct PrefillTile {
  int32_t row_begin;    // first row, in the step; -1: no such tile
  int32_t tokens;       // rows, at most tile_tokens
  int32_t position;     // of the first row
  int32_t table_begin;  // of the sequence's block table in PrefillParams::tables
  int32_t keys;         // keys of the sequence: position of its last row + 1
  int32_t key_tiles;    // key tiles that the last row attends to
  int32_t parts;        // parts that the key tiles are cut into
  TemperedKeys tempered;
};

// Finds tile `index` of the sequences. The tiles of a sequence come from the last (the longest) to
// the first. One whole warp calls it.
__device__ __forceinline__ PrefillTile FindTile(const PrefillParams& params, int32_t index) {
  const int32_t lane = threadIdx.x % 32;
  const int32_t num_sequences = params.num_sequences;
  for (int32_t begin = 0; begin < num_sequences; begin += 32) {
    StepSequence sequence = {};
    if (begin + lane < num_sequences) sequence = params.sequences[begin + lane];
    const bool counts =
        params.calibrates ? sequence.calibrate != 0 : sequence.role == RowRole::kPrefill;
    const int32_t tiles =
        counts ? (sequence.num_rows + params.tile_tokens - 1) / params.tile_tokens : 0;
    int32_t end = tiles;
    for (int32_t step = 1; step < 32; step *= 2) {
      const int32_t before = __shfl_up_sync(~0u, end, step);
      if (lane >= step) end += before;
    }
    const uint32_t mine = __ballot_sync(~0u, index >= end - tiles && index < end);
    if (mine == 0) {
      index -= __shfl_sync(~0u, end, 31);
      continue;
    }
    const int32_t first = (end - 1 - index) * params.tile_tokens;
    PrefillTile tile;
    tile.row_begin = sequence.row_begin + first;
    tile.tokens = min(params.tile_tokens, sequence.num_rows - first);
    tile.position = sequence.position + first;
    tile.table_begin = sequence.table_begin - params.tables_begin;
    tile.keys = sequence.position + sequence.num_rows;
    tile.key_tiles = (tile.position + tile.tokens + kTileKeys - 1) / kTileKeys;
    tile.parts = max(1, min(params.max_parts, tile.key_tiles / kMinPartTiles));
    tile.tempered = sequence.tempered;
    const int32_t owner = __ffs(mine) - 1;
    tile.row_begin = __shfl_sync(~0u, tile.row_begin, owner);
    tile.tokens = __shfl_sync(~0u, tile.tokens, owner);
    tile.position = __shfl_sync(~0u, tile.position, owner);
    tile.table_begin = __shfl_sync(~0u, tile.table_begin, owner);
    tile.keys = __shfl_sync(~0u, tile.keys, owner);
    tile.key_tiles = __shfl_sync(~0u, tile.key_tiles, owner);
    tile.parts = __shfl_sync(~0u, tile.parts, owner);
    tile.tempered.begin = __shfl_sync(~0u, tile.tempered.begin, owner);
    tile.tempered.words = __shfl_sync(~0u, tile.tempered.words, owner);
    return tile;
  }
  PrefillTile none = {};
  none.row_begin = -1;
  return none;
}

// Which keys of key tile `key_tile` are tempered, if a gate reads them.
__device__ __forceinline__ uint64_t TemperedKeysOf(const PrefillParams& params,
                                                   const TemperedKeys& tempered, int32_t key_tile) {
  static_assert(kTileKeys == 64);
  if (!params.gated || 2 * key_tile >= tempered.words) return 0;
  const int32_t* words = params.step.tables + tempered.begin + 2 * key_tile;
  return static_cast<uint32_t>(words[0]) | static_cast<uint64_t>(static_cast<uint32_t>(words[1]))
                                               << 32;
}

// The first key tile of part `part`. The part ends where part + 1 begins.
__device__ __forceinline__ int32_t PartBegin(const PrefillTile& tile, int32_t part) {
  return static_cast<int32_t>(static_cast<int64_t>(tile.key_tiles) * part / tile.parts);
}

// Where a part's results are in memory.
struct Part {
  __device__ __forceinline__ Part(const PrefillParams& params, int32_t tile, int32_t kv_head,
                                  int32_t part) {
    const int32_t d = params.geometry.head_dim;
    const int64_t index =
        (static_cast<int64_t>(tile) * params.geometry.num_kv_heads + kv_head) * params.max_parts +
        part;
    sums = params.partials + index * kTileQueries * (d + 2);
    maxima = sums + kTileQueries * d;
    weights = maxima + kTileQueries;
  }
  float* sums;     // [128][d], weighted values
  float* maxima;   // [128], base-2 logits
  float* weights;  // [128]
};

// The work of a CTA, from its index in the grid. KV heads alternate fastest.
struct PrefillWork {
  int32_t tile;
  int32_t kv_head;
  int32_t part;
};

__device__ __forceinline__ PrefillWork WorkOfBlock(const PrefillParams& params) {
  const int32_t num_kv_heads = params.geometry.num_kv_heads;
  const int32_t rest = blockIdx.x / num_kv_heads;
  return {rest / params.max_parts, static_cast<int32_t>(blockIdx.x % num_kv_heads),
          rest % params.max_parts};
}

// Stores two neighbouring elements of the output. `at` counts elements and is even.
__device__ __forceinline__ void StorePair(void* out, DType dtype, int64_t at, float x, float y) {
  if (dtype == DType::kFloat32) {
    *reinterpret_cast<float2*>(static_cast<float*>(out) + at) = make_float2(x, y);
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(out) + at) =
        dtype == DType::kFloat16 ? PackPair<Half>(x, y) : PackPair<BFloat16>(x, y);
  }
}

}  // namespace eta::cuda
