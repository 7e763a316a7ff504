// Activations in 8 bits (eta-semantics.md, "Packed weights"), in tiles of rows as products take
// them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/weights/integer_groups.h"

namespace eta::cpu {

// 32 activations of a row: one line of the cache.
struct alignas(64) QuantizedGroup {
  std::array<int32_t, kGroupNumbers / 4> x;  // four 8-bit activations to a word, the first lowest
  float scale;                               // a
  float scaled_sum;                          // b
  // Where the sum of u x has to start, so that the sum of (u - offset) x comes out: -offset X, for
  // each offset that types have, above a target's kFirstSum. StartOf() has the place; of 32 it is
  // that of two halves.
  std::array<int32_t, 6> start;
};
static_assert(sizeof(QuantizedGroup) == 64);

constexpr size_t StartOf(int offset) {
  return offset == 8 ? 0 : offset == 16 ? 1 : offset == 128 ? 2 : 3;
}

// Rows in tiles: as many of the tallest as fit, then lower ones. A tile is an array
// [groups][height]; rows of it that are none are zeros.
struct RowTile {
  int64_t row;     // the first; as many rows of tiles are before it
  int64_t rows;    // at most height; less in the last tile only
  int64_t height;  // a power of two
};

class RowTiles {
 public:
  RowTiles(int64_t rows, int64_t tallest) : tallest_(tallest), full_(rows / tallest) {
    for (int64_t row = full_ * tallest; row < rows;) {
      const int64_t height = HeightOf(rows - row);
      tail_[static_cast<size_t>(num_tail_++)] = {row, std::min(height, rows - row), height};
      row += height;
    }
  }

  int64_t count() const { return full_ + num_tail_; }
  RowTile tile(int64_t i) const {
    if (i < full_) return {i * tallest_, tallest_, tallest_};
    return tail_[static_cast<size_t>(i - full_)];
  }
  // Rows of all tiles. REQUIRES: there is a tile.
  int64_t height() const {
    const RowTile last = tile(count() - 1);
    return last.row + last.height;
  }
  // The tile that has row `row` of all tiles.
  int64_t TileOf(int64_t row) const {
    int64_t i = std::min(row / tallest_, full_);
    while (i + 1 < count() && row >= tile(i + 1).row) ++i;
    return i;
  }

 private:
  // A few rows too many cost less than another tile, for which weights are unpacked anew.
  static int64_t HeightOf(int64_t rows) {
    int64_t height = 1;
    while (height < rows) height *= 2;
    return 4 * (height - rows) > height ? height / 2 : height;
  }

  int64_t tallest_;
  int64_t full_;
  int64_t num_tail_ = 0;
  std::array<RowTile, 8> tail_{};
};

}  // namespace eta::cpu
