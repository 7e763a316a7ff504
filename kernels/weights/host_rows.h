// Rows of a checkpoint's matrix in host memory, as floats or as blocks, whatever it is stored as.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/backend.h"
#include "kernels/dtype.h"
#include "kernels/weights/ggml_type.h"

namespace eta {

// The blocks in which `matrix` is kept under a format; null: floats, as they are stored. What is
// stored in blocks of no more bits than the format has stays as it is.
const GgmlLayout* PackedLayout(const HostMatrix& matrix, WeightFormat format);

// The greatest magnitude that every block holds which is made for a format (pack_groups.h);
// infinity for native and unpacked.
float MostWeight(WeightFormat format);
// Index of the first of `numbers`, float32, float16 or bfloat16, that is NaN or of a magnitude over
// MostWeight(); nullopt if there is none. All of float16 count as within it.
std::optional<int64_t> FirstOverMost(std::span<const std::byte> numbers, DType dtype,
                                     WeightFormat format);

// Bytes of a row of `cols` numbers. Its last block may be longer than what is left of the row.
size_t BlockRowBytes(const GgmlLayout& layout, int64_t cols);

// Writes row `row` as float32 [cols], blocks by UnpackBlocks, e4m3 as its scale times its number.
void ReadFloats(const HostMatrix& matrix, int64_t row, std::span<float> out);

// Writes row `row` as blocks of `layout`, which is of PackedLayout() for some format:
// [BlockRowBytes()]. Of other blocks and of floats they are made (pack_groups.h).
void ReadBlocks(const HostMatrix& matrix, int64_t row, const GgmlLayout& layout,
                std::span<std::byte> out);

}  // namespace eta
