// The work of one CTA of prefill attention, for every kernel: a tile of 128 queries against a range
// of keys. The queries are the G heads of one KV head for 128 / G consecutive rows of a sequence
// (query i is head i % G of row i / G). So every key that is read serves the whole group. A range
// is cut into parts if there are too few tiles to fill the device, or if a list of sparse prefill
// is long. Each part then leaves its sums in memory, and MergeParts (prefill_attention.cu) joins
// them in ascending order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/find_piece.cuh"
#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/host/step_view.h"
#include "kernels/cuda/prefill/admitted_tiles.h"

namespace eta::cuda {

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
  const float* sinks;  // [HQ] or null
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
  int32_t window;   // of the layer: tiles are of all prefill sequences; 0: none
  bool calibrates;  // true: tiles are of sequences that calibrate only
  // Of sparse prefill; else null pointers, and the tiles are those of full prefill. Its first tile
  // is that of the first of `sequences`.
  AdmittedTiles admitted;
  const std::byte* records;  // of the cache, for the floor
  float* partials;  // [tile, HKV, max_parts] or, of sparse prefill, [max_results]: a Part's arrays
};

struct PrefillTile {
  int32_t row_begin;    // first row, in the step; -1: no such tile
  int32_t tokens;       // rows, at most tile_tokens
  int32_t position;     // of the first row
  int32_t table_begin;  // of the sequence's block table in PrefillParams::tables
  int32_t first_key;    // the first that a row attends to: blocks before it may be gone
  int32_t keys;         // keys of the sequence: position of its last row + 1
  int32_t first_tile;   // key tile of the first key
  int32_t key_tiles;    // end of those that the last row attends to; of sparse prefill those listed
  int32_t parts;        // parts that the key tiles are cut into
  TemperedKeys tempered;
};

// Finds tile `index` of the sequences. The tiles of a sequence come from the last (the longest) to
// the first. One whole warp calls it.
__device__ __forceinline__ PrefillTile FindTile(const PrefillParams& params, int32_t index) {
  const auto tiles_of = [&](const StepSequence& sequence) {
    const bool counts = params.calibrates
                            ? sequence.calibrate != 0
                            : sequence.role == RowRole::kPrefill &&
                                  (params.window > 0 ||
                                   (sequence.sparse != 0) == (params.admitted.entries != nullptr));
    return counts ? (sequence.num_rows + params.tile_tokens - 1) / params.tile_tokens : 0;
  };
  const Piece piece = FindPiece(params.sequences, params.num_sequences, index, tiles_of);
  PrefillTile tile = {};
  tile.row_begin = -1;
  if (piece.sequence < 0) return tile;
  const StepSequence sequence = params.sequences[piece.sequence];
  const int32_t first = (tiles_of(sequence) - 1 - piece.index) * params.tile_tokens;
  tile.row_begin = sequence.row_begin + first;
  tile.tokens = min(params.tile_tokens, sequence.num_rows - first);
  tile.position = sequence.position + first;
  tile.table_begin = sequence.table_begin - params.tables_begin;
  tile.keys = sequence.position + sequence.num_rows;
  tile.first_key = WindowBegin(tile.position, params.window);
  tile.first_tile = tile.first_key / kTileKeys;
  tile.key_tiles = (tile.position + tile.tokens + kTileKeys - 1) / kTileKeys;
  tile.parts = max(1, min(params.max_parts, (tile.key_tiles - tile.first_tile) / kMinPartTiles));
  tile.tempered = sequence.tempered;
  return tile;
}

// The same of a tile of sparse prefill and one KV head: its key tiles are those listed.
__device__ __forceinline__ PrefillTile FindTile(const PrefillParams& params, int32_t index,
                                                int32_t kv_head) {
  PrefillTile tile = FindTile(params, index);
  if (params.admitted.entries == nullptr || tile.row_begin < 0) return tile;
  const PlannedList list = params.admitted.lists[params.admitted.List(index, kv_head)];
  tile.key_tiles = list.key_tiles;
  tile.parts = list.parts;
  return tile;
}

// The entries of a list of sparse prefill.
__device__ __forceinline__ const std::byte* EntriesOf(const PrefillParams& params, int64_t list,
                                                      int32_t entry_bytes) {
  return params.admitted.entries + list * params.admitted.capacity * entry_bytes;
}

// Whether keys that query `query` of a tile pruned weigh exp(0). Without pruned keys the floor's
// terms would cancel in exact arithmetic, but not in float32.
__device__ __forceinline__ bool HasFloor(const PrefillParams& params, const PrefillTile& tile,
                                         int32_t kv_head, int32_t query) {
  const int32_t token = query / params.group;
  if (params.admitted.entries == nullptr || !params.gated || token >= tile.tokens) return false;
  const int64_t row = tile.row_begin + token;
  if (!params.step.rows[row].attention.uniform_floor) return false;
  const int64_t head = static_cast<int64_t>(kv_head) * params.group + query % params.group;
  return params.admitted.prunes[row * params.group * params.geometry.num_kv_heads + head] != 0;
}

// What the pruned keys of a row weigh at weight 1, with those that it attends to: all keys of its
// full blocks.
struct FloorOfRow {
  __device__ __forceinline__ FloorOfRow(const PrefillParams& params, int64_t row, int32_t kv_head) {
    const StepRow& step_row = params.step.rows[row];
    const int32_t num_full = (step_row.position + 1) / params.geometry.block_size;
    const int32_t last = params.step.tables[step_row.table_begin + num_full - 1];
    keys = static_cast<float>(num_full * params.geometry.block_size);
    values = ValueTotal(KvTile(params.geometry), params.records, last, kv_head);
  }
  float keys;           // their number
  const float* values;  // the sum of their values, [d]
};

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
  const int64_t tiles = tile.key_tiles - tile.first_tile;
  return tile.first_tile + static_cast<int32_t>(tiles * part / tile.parts);
}

// Where a part's results are in memory.
struct Part {
  __device__ __forceinline__ Part(const PrefillParams& params, int32_t tile, int32_t kv_head,
                                  int32_t part) {
    const int32_t d = params.geometry.head_dim;
    const AdmittedTiles& admitted = params.admitted;
    const int64_t index =
        admitted.entries != nullptr
            ? admitted.lists[admitted.List(tile, kv_head)].results + part
            : (static_cast<int64_t>(tile) * params.geometry.num_kv_heads + kv_head) *
                      params.max_parts +
                  part;
    sums = params.partials + index * kTileQueries * (d + 2);
    maxima = sums + kTileQueries * d;
    weights = maxima + kTileQueries;
  }
  // `count` parts after this one.
  __device__ __forceinline__ Part After(const PrefillParams& params, int32_t count) const {
    const int64_t step = int64_t{count} * kTileQueries * (params.geometry.head_dim + 2);
    Part part = *this;
    part.sums += step;
    part.maxima += step;
    part.weights += step;
    return part;
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

// With a tile below 0 there is none; a tile past the last one has no rows (FindTile).
__device__ __forceinline__ PrefillWork WorkOfBlock(const PrefillParams& params) {
  const int32_t num_kv_heads = params.geometry.num_kv_heads;
  const AdmittedTiles& admitted = params.admitted;
  if (admitted.entries != nullptr) {
    if (blockIdx.x < admitted.plan->parts) {
      const ListPart of = admitted.parts[blockIdx.x];
      return {of.list / num_kv_heads - admitted.first_tile, of.list % num_kv_heads, of.part};
    }
    return {-1, 0, 0};
  }
  const int32_t rest = blockIdx.x / num_kv_heads;
  return {rest / params.max_parts, static_cast<int32_t>(blockIdx.x % num_kv_heads),
          rest % params.max_parts};
}

// The `place`-th tile and KV head whose keys may have been cut into parts.
__device__ __forceinline__ PrefillWork CutList(const PrefillParams& params, uint32_t place) {
  const auto num_kv_heads = static_cast<uint32_t>(params.geometry.num_kv_heads);
  const AdmittedTiles& admitted = params.admitted;
  int32_t first_tile = 0;
  if (admitted.entries != nullptr) {
    place = admitted.cuts[place];
    first_tile = admitted.first_tile;
  }
  return {static_cast<int32_t>(place / num_kv_heads) - first_tile,
          static_cast<int32_t>(place % num_kv_heads), 0};
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
