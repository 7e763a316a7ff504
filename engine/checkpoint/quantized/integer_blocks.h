// Integers of 4 and 8 bits with scales, as compressed-tensors keeps them, as ggml's blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/weights/ggml_type.h"

namespace eta {

struct IntegerTensor {
  size_t rows = 0;
  size_t cols = 0;  // whole groups of 32, and of a scale's numbers
  int bits = 8;
  bool in_words = false;  // int32 words, the first numbers in the low bits; else int8
  std::span<const std::byte> numbers;
  std::span<const float> scales;  // [scale_rows, scale_cols], 1 or `rows` rows
  size_t scale_rows = 1;
  size_t scale_cols = 1;
  std::span<const std::byte> zero_points;  // [ceil(scale_rows / 8), scale_cols] words; empty: none
};

// 4 bits become Q4_0, or Q4_1 where there are zero points, 8 bits Q8_0.
GgmlLayout BlocksOf(const IntegerTensor& tensor);
// Scales are rounded to float16, beyond which they are infinite.
std::vector<std::byte> ToBlocks(const IntegerTensor& tensor);

}  // namespace eta
