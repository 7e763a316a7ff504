#include "training/cpu/attention_tile.h"

#include <algorithm>

#include "training/cpu/ops.h"
#include "training/cpu/product.h"

namespace eta::training::cpu {
namespace {

// Of a key that the query does not attend to. It is finite: a row may see nothing else for some
// tiles, and what they added is gone when its own key, which every row reads, raises the largest
// score.
constexpr float kUnread = -1e30f;

// Queries of the tile that attend to its block of keys.
uint64_t QueriesOf(const AttentionForwardParams& params, const TilePlace& place) {
  const AttentionShape& shape = params.shape;
  if (params.keys.blocks == nullptr) return ~uint64_t{0};
  const int64_t n = KeySelection::Blocks(shape.length);
  const int64_t head = int64_t{place.sequence} * shape.num_kv_heads + place.head / shape.group();
  return params.keys.blocks[(head * n + place.key_tile) * n + place.query_tile];
}

// Keys of the tile that lie before the window of the query at `position`.
int32_t KeysBefore(const KeySelection& keys, const TilePlace& place, int32_t position) {
  if (keys.window == 0) return 0;
  return std::clamp(position - keys.window + 1 - place.key_tile * kTileKeys, 0, kTileKeys);
}

void HideUnread(const AttentionForwardParams& params, const TilePlace& place, const TileRows& rows,
                const ScoredTile& tile) {
  if (params.keys.all()) return;
  const uint64_t queries = QueriesOf(params, place);
  for (int32_t r = 0; r < rows.queries; ++r) {
    const bool chosen = (queries >> r & 1) != 0;
    std::fill_n(tile.scores + r * kTileKeys,
                chosen ? KeysBefore(params.keys, place, rows.position + r) : kTileKeys, kUnread);
  }
}

}  // namespace

TileRows RowsOf(const AttentionShape& shape, const TilePlace& place) {
  const int32_t query = place.query_tile * kTileKeys;
  const int32_t key = place.key_tile * kTileKeys;
  const int64_t first = int64_t{place.sequence} * shape.length;
  return {std::min(kTileKeys, shape.length - query), std::min(kTileKeys, shape.length - key),
          first + query, first + key, query};
}

int32_t KeysSeen(const TilePlace& place, const TileRows& rows, int32_t r) {
  return place.key_tile == place.query_tile ? r + 1 : rows.keys;
}

bool IsWhole(const TilePlace& place, const TileRows& rows, int32_t r) {
  return KeysSeen(place, rows, r) == kTileKeys;
}

bool IsRead(const AttentionForwardParams& params, const TilePlace& place) {
  const TileRows rows = RowsOf(params.shape, place);
  const uint64_t queries = ~uint64_t{0} >> (kTileKeys - rows.queries);
  return (QueriesOf(params, place) & queries) != 0 &&
         KeysBefore(params.keys, place, rows.position) < kTileKeys;
}

void ScoreTile(const AttentionForwardParams& params, const TilePlace& place,
               const ScoredTile& tile) {
  const AttentionShape& shape = params.shape;
  const TileRows rows = RowsOf(shape, place);
  const int64_t d = shape.head_dim;
  const float* q = Row(params.q, rows.first_query) + place.head * d;
  const float* k = Row(params.k, rows.first_key) + place.head / shape.group() * d;
  Multiply(rows.queries, rows.keys, d, shape.scale, {q, params.q.stride},
           {k, params.k.stride, Transposed::kYes}, false, tile.scores, kTileKeys);
  HideUnread(params, place, rows, tile);
  if (params.gate.kind == GateKind::kNone) return;
  for (int32_t r = 0; r < rows.queries; ++r) {
    const float tau = params.tau[(rows.first_query + r) * shape.num_query_heads + place.head];
    const int32_t at = r * kTileKeys;
    Gates(params.gate, tau, tile.scores + at, tile.open + at, tile.closed + at);
  }
}

void LogitsOfRow(const AttentionForwardParams& params, const TilePlace& place,
                 const ScoredTile& tile, int32_t r, int32_t keys, float* logits) {
  const int32_t at = r * kTileKeys;
  if (params.gate.kind == GateKind::kNone) {
    std::copy_n(tile.scores + at, kTileKeys, logits);
    return;
  }
  Logits(params.gate, tile.scores + at, tile.open + at, tile.closed + at, logits);
  if (place.key_tile == place.query_tile) logits[keys - 1] = tile.scores[at + keys - 1];
}

}  // namespace eta::training::cpu
