#include "training/cpu/attention_tile.h"

#include <algorithm>

#include "training/cpu/ops.h"
#include "training/cpu/product.h"

namespace eta::training::cpu {

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

void ScoreTile(const AttentionForwardParams& params, const TilePlace& place,
               const ScoredTile& tile) {
  const AttentionShape& shape = params.shape;
  const TileRows rows = RowsOf(shape, place);
  const int64_t d = shape.head_dim;
  const float* q = Row(params.q, rows.first_query) + place.head * d;
  const float* k = Row(params.k, rows.first_key) + place.head / shape.group() * d;
  Multiply(rows.queries, rows.keys, d, shape.scale, {q, params.q.stride},
           {k, params.k.stride, Transposed::kYes}, false, tile.scores, kTileKeys);
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
