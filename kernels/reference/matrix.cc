#include "kernels/reference/matrix.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/weights/host_rows.h"

namespace eta::reference {
namespace {

size_t Count(int64_t rows, size_t per_row) {
  return static_cast<size_t>(rows) * per_row;
}

DenseRows Dense(const HostMatrix& part) {
  const auto cols = static_cast<size_t>(part.cols);
  DenseRows rows{std::vector<float>(Count(part.rows, cols))};
  for (int64_t i = 0; i < part.rows; ++i) {
    ReadFloats(part, i, std::span(rows.values).subspan(Count(i, cols), cols));
  }
  return rows;
}

PackedRows Packed(const HostMatrix& part, const GgmlLayout& layout) {
  PackedRows rows{layout, BlockRowBytes(layout, part.cols), {}};
  rows.blocks.resize(Count(part.rows, rows.row_bytes));
  for (int64_t i = 0; i < part.rows; ++i) {
    ReadBlocks(part, i, layout,
               std::span(rows.blocks).subspan(Count(i, rows.row_bytes), rows.row_bytes));
  }
  return rows;
}

MatrixPart Keep(const HostMatrix& part, WeightFormat format) {
  const GgmlLayout* layout = PackedLayout(part, format);
  if (layout == nullptr) return {part.rows, Dense(part)};
  return {part.rows, Packed(part, *layout)};
}

int64_t SumOfRows(std::span<const HostMatrix> parts) {
  int64_t rows = 0;
  for (const HostMatrix& part : parts) rows += part.rows;
  return rows;
}

}  // namespace

std::vector<IntegerGroup> PackedRows::Row(int64_t i) const {
  std::vector<IntegerGroup> groups(row_bytes / layout.block_bytes * layout.block_elements /
                                   kGroupNumbers);
  DecodeGroups(layout, std::span(blocks).subspan(Count(i, row_bytes), row_bytes), groups);
  return groups;
}

StackedMatrix::StackedMatrix(std::span<const HostMatrix> parts, WeightFormat format)
    : Matrix(SumOfRows(parts), parts.empty() ? 0 : parts.front().cols) {
  for (const HostMatrix& part : parts) parts_.push_back(Keep(part, format));
}

size_t StackedMatrix::bytes() const {
  size_t bytes = 0;
  for (const MatrixPart& part : parts_) {
    const auto* dense = std::get_if<DenseRows>(&part.kept);
    bytes += dense != nullptr ? dense->values.size() * sizeof(float)
                              : std::get<PackedRows>(part.kept).blocks.size();
  }
  return bytes;
}

void StackedMatrix::ReadRow(int64_t row, float* out) const {
  auto part = parts_.begin();
  for (; row >= part->rows; ++part) row -= part->rows;
  if (const auto* dense = std::get_if<DenseRows>(&part->kept)) {
    std::copy_n(dense->values.data() + row * cols(), cols(), out);
    return;
  }
  const auto& packed = std::get<PackedRows>(part->kept);
  std::array<float, kGroupNumbers> numbers;
  int64_t left = cols();
  for (const IntegerGroup& group : packed.Row(row)) {
    UnpackGroup(group, FormOf(packed.layout.type).has_low, numbers);
    const int64_t count = std::min<int64_t>(left, kGroupNumbers);
    out = std::copy_n(numbers.begin(), count, out);
    left -= count;
  }
}

}  // namespace eta::reference
