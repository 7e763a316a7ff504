// Weights in e4m3 with float32 scales (eta-semantics.md, "Packed weights"): one scale for a block
// of rows and columns. A block of all columns of one row is a scale per channel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace eta {

struct Float8Scales {
  const float* data = nullptr;  // [ceil(rows / block_rows), ceil(cols / block_cols)]
  int64_t block_rows = 1;       // at least 1
  int64_t block_cols = 1;       // likewise

  // Of number `col` of row `row`, of rows of `cols` numbers.
  float At(int64_t row, int64_t col, int64_t cols) const {
    const int64_t across = (cols + block_cols - 1) / block_cols;
    return data[row / block_rows * across + col / block_cols];
  }
};

}  // namespace eta
