// Packs a checkpoint's matrices into panels, and reads single rows back.

#include <algorithm>
#include <vector>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/ops.h"
#include "kernels/weights/host_rows.h"

namespace eta::cpu {
namespace {

// The element at which channel `c` stands in a row of a panel.
int64_t Slot(Storage storage, int64_t c) {
  if (storage != Storage::kBFloat16) return c;
  constexpr int64_t kHalf = kPanelCols / 2;
  return c < kHalf ? 2 * c : 2 * (c - kHalf) + 1;
}

Storage ChooseStorage(std::span<const HostMatrix> parts) {
  const auto all = [&](DType dtype) {
    return std::all_of(parts.begin(), parts.end(),
                       [=](const HostMatrix& part) { return part.dtype == dtype; });
  };
  if (all(DType::kBFloat16)) return Storage::kBFloat16;
  return all(DType::kFloat16) ? Storage::kFloat16 : Storage::kFloat32;
}

// `numbers`: memory for a row.
void PackRow(const HostMatrix& part, int64_t from, int64_t row, std::vector<float>& numbers,
             PanelMatrix& matrix) {
  const Storage storage = matrix.storage();
  const int64_t cols = part.cols;
  std::byte* to = matrix.panel(row / kPanelCols) +
                  static_cast<size_t>(Slot(storage, row % kPanelCols)) * StorageBytes(storage);
  if (storage != Storage::kFloat32) {
    const uint16_t* source = static_cast<const uint16_t*>(part.data) + from * cols;
    auto* out = reinterpret_cast<uint16_t*>(to);
    for (int64_t k = 0; k < cols; ++k) out[k * kPanelCols] = source[k];
    return;
  }
  numbers.resize(static_cast<size_t>(cols));
  ReadFloats(part, from, numbers);
  auto* out = reinterpret_cast<float*>(to);
  for (int64_t k = 0; k < cols; ++k) out[k * kPanelCols] = numbers[static_cast<size_t>(k)];
}

int64_t SumOfRows(std::span<const HostMatrix> parts) {
  int64_t rows = 0;
  for (const HostMatrix& part : parts) rows += part.rows;
  return rows;
}

std::unique_ptr<PanelMatrix> PackFloats(std::span<const HostMatrix> parts) {
  auto matrix =
      std::make_unique<PanelMatrix>(SumOfRows(parts), parts.front().cols, ChooseStorage(parts));
  int64_t row = 0;
  std::vector<float> numbers;
  for (const HostMatrix& part : parts) {
    for (int64_t from = 0; from < part.rows; ++from) PackRow(part, from, row++, numbers, *matrix);
  }
  return matrix;
}

// To make 4 bits of floats takes longer than to read them, so all threads do.
std::unique_ptr<BlockRows> PackBlocks(Workers& workers, std::span<const HostMatrix> parts,
                                      const GgmlLayout& layout) {
  auto rows = std::make_unique<BlockRows>(SumOfRows(parts), parts.front().cols, layout);
  int64_t first = 0;
  for (const HostMatrix& part : parts) {
    workers.Run(part.rows, [&](int64_t row, int) {
      thread_local std::vector<std::byte> blocks;
      blocks.resize(BlockRowBytes(layout, part.cols));
      ReadBlocks(part, row, layout, blocks);
      rows->SetRow(first + row, blocks);
    });
    first += part.rows;
  }
  return rows;
}

// Whether two parts can be one.
bool Alike(const GgmlLayout* a, const GgmlLayout* b) {
  return a == nullptr || b == nullptr ? a == b : a->type == b->type;
}

}  // namespace

PanelMatrix::PanelMatrix(int64_t rows, int64_t cols, Storage storage)
    : Matrix(rows, cols),
      storage_(storage),
      num_panels_((rows + kPanelCols - 1) / kPanelCols),
      panel_bytes_(static_cast<size_t>(cols) * kPanelCols * StorageBytes(storage)),
      data_(AllocateOrThrow(panel_bytes_ * static_cast<size_t>(num_panels_))) {}

void PanelMatrix::ReadRow(int64_t row, float* out) const {
  const std::byte* from =
      panel(row / kPanelCols) +
      static_cast<size_t>(Slot(storage_, row % kPanelCols)) * StorageBytes(storage_);
  for (int64_t k = 0; k < cols(); ++k) {
    switch (storage_) {
      case Storage::kFloat32:
        out[k] = reinterpret_cast<const float*>(from)[k * kPanelCols];
        break;
      case Storage::kFloat16:
        out[k] = HalfToFloat(reinterpret_cast<const uint16_t*>(from)[k * kPanelCols]);
        break;
      case Storage::kBFloat16:
        out[k] = BFloat16ToFloat(reinterpret_cast<const uint16_t*>(from)[k * kPanelCols]);
        break;
    }
  }
}

StackedMatrix::StackedMatrix(Workers& workers, std::span<const HostMatrix> parts,
                             WeightFormat format)
    : Matrix(SumOfRows(parts), parts.front().cols) {
  int64_t first = 0;
  while (!parts.empty()) {
    const GgmlLayout* layout = PackedLayout(parts.front(), format);
    const auto other = std::find_if(parts.begin(), parts.end(), [&](const HostMatrix& part) {
      return !Alike(PackedLayout(part, format), layout);
    });
    const auto alike = parts.first(static_cast<size_t>(other - parts.begin()));
    if (layout == nullptr) {
      float_parts_.push_back({PackFloats(alike), first});
    } else {
      blocks_.push_back(PackBlocks(workers, alike, *layout));
      packed_parts_.push_back({blocks_.back().get(), first});
    }
    first += SumOfRows(alike);
    parts = parts.subspan(alike.size());
  }
}

size_t StackedMatrix::bytes() const {
  size_t bytes = 0;
  for (const FloatPart& part : float_parts_) bytes += part.weight->bytes();
  for (const auto& rows : blocks_) bytes += rows->bytes();
  return bytes;
}

void StackedMatrix::ReadRow(int64_t row, float* out) const {
  for (const FloatPart& part : float_parts_) {
    const int64_t own = row - part.first;
    if (own >= 0 && own < part.weight->rows()) return part.weight->ReadRow(own, out);
  }
  for (const PackedPart& part : packed_parts_) {
    const int64_t own = row - part.first;
    if (own >= 0 && own < part.weight->rows()) return part.weight->ReadRow(own, out);
  }
}

std::unique_ptr<Matrix> PackMatrix(Workers& workers, std::span<const HostMatrix> parts,
                                   WeightFormat format) {
  return std::make_unique<StackedMatrix>(workers, parts, format);
}

}  // namespace eta::cpu
