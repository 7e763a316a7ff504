#include "tests/testing/kernels/random_blocks.h"

#include <cstring>

#include "kernels/weights/host_rows.h"
#include "kernels/weights/integer_groups.h"
#include "tests/testing/kernels/block_halves.h"

namespace eta::testing {

const std::vector<GgmlLayout>& PackedLayouts() {
  static const auto& layouts = *new std::vector<GgmlLayout>([] {
    std::vector<GgmlLayout> packed;
    for (uint32_t type = 0; type < 64; ++type) {
      const auto layout = FindGgmlLayout(type);
      if (layout && IsPacked(layout->type)) packed.push_back(*layout);
    }
    return packed;
  }());
  return layouts;
}

std::vector<std::byte> RandomBlocks(Random& random, const GgmlLayout& layout, size_t count) {
  std::vector<std::byte> blocks(count * layout.block_bytes);
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(Uniform(random, 0, 255));
  for (size_t i = 0; i < count; ++i) {
    if (layout.type == GgmlType::kMXFP4) {
      blocks[i * layout.block_bytes] = static_cast<std::byte>(Uniform(random, 118, 122));
    }
    for (const size_t at : HalvesOf(layout.type)) {
      const double magnitude = UniformReal(random, 0.2, 2.0) / 64.0;
      const uint16_t half =
          FloatToHalf(static_cast<float>(Often(random, 3) ? -magnitude : magnitude));
      std::memcpy(&blocks[i * layout.block_bytes + at], &half, sizeof(half));
    }
  }
  return blocks;
}

HostMatrix RandomPackedMatrix(Random& random, const GgmlLayout& layout, int64_t rows, int64_t cols,
                              std::vector<std::byte>& storage) {
  const auto count = static_cast<size_t>(rows * cols) / layout.block_elements;
  storage = RandomBlocks(random, layout, count);
  return {storage.data(), DType::kFloat32, rows, cols, &layout};
}

Float8Matrix::Float8Matrix(Random& random, int64_t rows, int64_t cols, int64_t block_rows,
                           int64_t block_cols) {
  for (int64_t i = 0; i < rows * cols; ++i) {
    const auto code = static_cast<uint8_t>(Uniform(random, 0, 255));
    codes_.push_back((code & 0x7F) == 0x7F ? uint8_t{0x80} : code);
  }
  const int64_t down = (rows + block_rows - 1) / block_rows;
  const int64_t across = (cols + block_cols - 1) / block_cols;
  for (int64_t i = 0; i < down * across; ++i) {
    const auto magnitude = static_cast<float>(UniformReal(random, 0.2, 2.0) / 256.0);
    scales_.push_back(Often(random, 4) ? -magnitude : magnitude);
  }
  float8_ = {scales_.data(), block_rows, block_cols};
  host_ = {codes_.data(), DType::kFloat32, rows, cols};
  host_.float8 = &float8_;
}

HostTensor Unpacked(const HostMatrix& matrix) {
  HostTensor numbers(matrix.rows, matrix.cols);
  for (int64_t r = 0; r < matrix.rows; ++r) {
    ReadFloats(matrix, r, {numbers.row(r), static_cast<size_t>(matrix.cols)});
  }
  return numbers;
}

}  // namespace eta::testing
