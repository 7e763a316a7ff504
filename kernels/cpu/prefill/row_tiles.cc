#include "kernels/cpu/prefill/row_tiles.h"

#include <algorithm>

namespace eta::cpu {

std::vector<RowTile> MakeRowTiles(const BatchView& batch, TileRows which, int32_t num_kv_heads,
                                  int32_t group, int num_threads, int32_t most_queries) {
  constexpr int32_t kLeastQueries = 24;
  // Of sparse prefill few queries of a tile meet a chunk, and making tiles of it weighs more.
  const int32_t tiles_per_thread = which == TileRows::kSparse ? 2 : 4;
  const auto is_meant = [which](const SequenceRows& sequence) {
    if (sequence.kind != RowKind::kPrefill) return false;
    return which == TileRows::kAll || IsSparsePrefill(sequence) == (which == TileRows::kSparse);
  };
  int64_t rows = 0;
  for (const SequenceRows& sequence : batch.sequences) {
    if (is_meant(sequence)) rows += sequence.num_rows;
  }
  int32_t queries = most_queries;
  while (queries > kLeastQueries &&
         rows * group * num_kv_heads < tiles_per_thread * queries * num_threads) {
    queries /= 2;
  }
  const int32_t height = std::max(1, queries / group);
  std::vector<RowTile> tiles;
  for (const SequenceRows& sequence : batch.sequences) {
    if (!is_meant(sequence)) continue;
    for (int32_t begin = 0; begin < sequence.num_rows; begin += height) {
      for (int32_t head = 0; head < num_kv_heads; ++head) {
        tiles.push_back({&sequence, head, begin, std::min(height, sequence.num_rows - begin)});
      }
    }
  }
  const auto cost = [](const RowTile& tile) {
    return static_cast<int64_t>(tile.count) * tile.num_keys();
  };
  std::stable_sort(tiles.begin(), tiles.end(),
                   [&](const RowTile& a, const RowTile& b) { return cost(a) > cost(b); });
  return tiles;
}

}  // namespace eta::cpu
