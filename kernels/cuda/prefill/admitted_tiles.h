// What tiles of sparse prefill attend to (eta-semantics.md, "Sparse prefill"): per attention tile
// and KV head an ascending list of key tiles, each with the queries that attend to it.
// SelectPrefillBlocks writes it and PrefillAttention reads it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/host/ops.h"
#include "kernels/kv_geometry.h"

namespace eta::cuda {

// An attention tile is 128 queries, the G heads of one KV head for 128 / G consecutive rows. It
// meets keys 64 at a time.
inline constexpr int32_t kTileQueries = 128;
inline constexpr int32_t kTileKeys = 64;

// CTAs of attention that a multiprocessor holds.
constexpr int32_t PrefillCtas(int32_t head_dim) {
  return head_dim == kWideHeadDim ? 1 : 2;
}

// The pieces of a key tile that queries admit one by one: its blocks, or one if a block holds it.
ETA_HOST_DEVICE constexpr int32_t TilePieces(int32_t block_size) {
  return block_size >= kTileKeys ? 1 : kTileKeys / block_size;
}

// An entry of a list: this header, then per piece of the key tile 128 bits. Bit q: query q of the
// attention tile attends to the keys of the piece, as far as they are not after its own.
struct alignas(16) AdmittedTile {
  int32_t key_tile;
};
inline constexpr int32_t kPieceBytes = kTileQueries / 8;

ETA_HOST_DEVICE constexpr int32_t AdmittedTileBytes(int32_t pieces) {
  return static_cast<int32_t>(sizeof(AdmittedTile)) + pieces * kPieceBytes;
}

// A part with fewer key tiles costs more to start and merge than it saves.
inline constexpr int32_t kMinPartTiles = 16;
// Parts of long lists for every CTA of attention that runs at a time.
inline constexpr int32_t kSharesOfSlot = 2;

// A list's length, and how it is cut into parts.
struct alignas(16) PlannedList {
  int32_t key_tiles;
  int32_t parts;
  int32_t results;  // the place of its first partial result, if there are several parts
};
// What one CTA attends to.
struct ListPart {
  int32_t list;
  int32_t part;
};

// How many there are.
struct PartPlan {
  uint32_t lists_made;  // so far
  uint32_t parts;
  uint32_t cut_lists;
};

struct AdmittedTiles {
  std::byte* entries = nullptr;  // [tiles, HKV, capacity], AdmittedTileBytes() each
  PlannedList* lists = nullptr;  // [tiles, HKV]
  ListPart* parts = nullptr;     // [max_parts], the longest first
  int32_t* cuts = nullptr;       // [max_results / 2]: the lists that have several parts
  PartPlan* plan = nullptr;
  uint8_t* prunes = nullptr;  // [R, HQ]: not 0 if the query does not attend to every full block
  int32_t capacity = 0;
  int32_t num_kv_heads = 0;
  int32_t slots = 0;  // CTAs of attention at a time
  int32_t max_parts = 0;
  int32_t max_results = 0;  // parts of lists that have several
  int32_t first_tile = 0;   // the tile of `entries` that is tile 0 of who reads

  ETA_HOST_DEVICE int64_t List(int32_t tile, int32_t kv_head) const {
    return static_cast<int64_t>(first_tile + tile) * num_kv_heads + kv_head;
  }
};

// The lists of the step's sequences of sparse prefill, in scratch memory. Null pointers if there is
// no memory.
AdmittedTiles AdmittedTilesOf(Context& context, const KvGeometry& geometry,
                              int32_t num_query_heads);
// Attention tiles of `num_rows` rows.
ETA_HOST_DEVICE int32_t AttentionTiles(int32_t num_rows, int32_t group) {
  const int32_t rows = kTileQueries / group;
  return (num_rows + rows - 1) / rows;
}
// The most bytes of that memory for steps of `rows` rows of sequences of up to `context` tokens.
size_t AdmittedTilesBytes(const KvGeometry& geometry, int64_t num_query_heads, int64_t rows,
                          int64_t context);

}  // namespace eta::cuda
