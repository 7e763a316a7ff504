// One tile of gated attention: kTileKeys queries of one head against kTileKeys keys. Tiles are
// aligned, so that a tile of keys is a block of the regulariser.
#pragma once

#include <cstdint>

#include "training/cpu/vector_math.h"
#include "training/params.h"

namespace eta::training::cpu {

static_assert(kTileKeys == kRegulariserBlock);
inline constexpr int32_t kTileElements = kTileKeys * kTileKeys;

// Where a tile lies.
struct TilePlace {
  int32_t sequence;    // b
  int32_t head;        // h
  int32_t query_tile;  // queries [64 i, 64 i + 64) of the sequence
  int32_t key_tile;    // at most query_tile
};

struct TileRows {
  int32_t queries;  // of the tile that the sequence has
  int32_t keys;
  int64_t first_query;  // row of the tensors
  int64_t first_key;
  int32_t position;  // of the first query
};
TileRows RowsOf(const AttentionShape& shape, const TilePlace& place);

// Keys that query `r` of the tile sees in it, its own included: on the diagonal's tile the last one
// of them is the query itself.
int32_t KeysSeen(const TilePlace& place, const TileRows& rows, int32_t r);
// Whether the tile's keys are a whole block for query `r`.
bool IsWhole(const TilePlace& place, const TileRows& rows, int32_t r);

// Whether a query of the tile attends to a key of it.
bool IsRead(const AttentionForwardParams& params, const TilePlace& place);

// [64, 64] each.
struct ScoredTile {
  float* scores;  // so low where the query does not attend to the key that it has no weight
  float* open;    // m; not written without a gate
  float* closed;  // 1 - m
};
void ScoreTile(const AttentionForwardParams& params, const TilePlace& place,
               const ScoredTile& tile);

// The logits of query `r`, with the diagonal's.
void LogitsOfRow(const AttentionForwardParams& params, const TilePlace& place,
                 const ScoredTile& tile, int32_t r, int32_t keys, float* logits);

}  // namespace eta::training::cpu
