// How the prefill rows of a step are cut into tasks of attention: tiles of a sequence's consecutive
// rows with all heads of one KV head's group. Their queries share every chunk of keys.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/batch.h"

namespace eta::cpu {

inline constexpr int32_t kPrefillChunk = 64;  // keys of a chunk, at multiples of 64 positions

// Rows [begin, begin + count) of a sequence, one KV head.
struct RowTile {
  const SequenceRows* sequence;
  int32_t kv_head;
  int32_t begin;
  int32_t count;

  int32_t position(int32_t i) const { return sequence->position + begin + i; }
  int64_t row(int32_t i) const { return sequence->row_begin + begin + i; }
  int32_t num_keys() const { return position(count - 1) + 1; }
};

// Which prefill rows tiles are made of.
enum class TileRows : uint8_t { kFull, kSparse, kAll };

// The tiles of the rows of full prefill, of sparse prefill or of both, the most expensive first. A
// tile has at most `most_queries` queries (rows x heads), fewer if there would not be several tiles
// per thread.
std::vector<RowTile> MakeRowTiles(const BatchView& batch, TileRows which, int32_t num_kv_heads,
                                  int32_t group, int num_threads, int32_t most_queries);

}  // namespace eta::cpu
