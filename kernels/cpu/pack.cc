// Packs a checkpoint's matrices into panels, and reads single rows back.

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/ops.h"

namespace eta::cpu {
namespace {

HostMemory AllocateOrThrow(size_t bytes) {
  HostMemory memory = AllocateHostMemory(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// The element at which channel `c` stands in a row of a panel.
int64_t Slot(Storage storage, int64_t c) {
  if (storage != Storage::kBFloat16) return c;
  constexpr int64_t kHalf = kPanelCols / 2;
  return c < kHalf ? 2 * c : 2 * (c - kHalf) + 1;
}

Storage ChooseStorage(std::span<const HostMatrix> parts, WeightFormat format) {
  if (format == WeightFormat::kInt8) return Storage::kInt8;
  const auto all = [&](DType dtype) {
    return std::all_of(parts.begin(), parts.end(),
                       [=](const HostMatrix& part) { return part.dtype == dtype; });
  };
  if (all(DType::kBFloat16)) return Storage::kBFloat16;
  return all(DType::kFloat16) ? Storage::kFloat16 : Storage::kFloat32;
}

void PackInt8(std::span<const float> channel, int8_t* to, float& scale) {
  float largest = 0.0f;
  bool finite = true;
  for (const float w : channel) {
    finite = finite && std::isfinite(w);
    largest = std::max(largest, std::abs(w));
  }
  if (!finite) {  // NaN or infinity stays visible: every output of the channel becomes NaN
    scale = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  scale = largest / 127.0f;
  if (!std::isnormal(scale)) {
    scale = 0.0f;
    return;
  }
  for (size_t k = 0; k < channel.size(); ++k) {
    to[k * kPanelCols] = static_cast<int8_t>(std::nearbyint(channel[k] / scale));
  }
}

void PackRow(const HostMatrix& part, int64_t from, int64_t row, PackedMatrix& matrix,
             std::vector<float>& channel) {
  const Storage storage = matrix.storage();
  const int64_t cols = part.cols;
  std::byte* to = matrix.panel(row / kPanelCols) +
                  static_cast<size_t>(Slot(storage, row % kPanelCols)) * StorageBytes(storage);
  if (storage == Storage::kFloat16 || storage == Storage::kBFloat16) {
    const uint16_t* source = static_cast<const uint16_t*>(part.data) + from * cols;
    auto* out = reinterpret_cast<uint16_t*>(to);
    for (int64_t k = 0; k < cols; ++k) out[k * kPanelCols] = source[k];
    return;
  }
  for (int64_t k = 0; k < cols; ++k) {
    channel[static_cast<size_t>(k)] = LoadElement(part.dtype, part.data, from * cols + k);
  }
  if (storage == Storage::kInt8) {
    PackInt8(channel, reinterpret_cast<int8_t*>(to), matrix.scales()[row]);
    return;
  }
  auto* out = reinterpret_cast<float*>(to);
  for (int64_t k = 0; k < cols; ++k) out[k * kPanelCols] = channel[static_cast<size_t>(k)];
}

}  // namespace

PackedMatrix::PackedMatrix(int64_t rows, int64_t cols, Storage storage)
    : Matrix(rows, cols),
      storage_(storage),
      num_panels_((rows + kPanelCols - 1) / kPanelCols),
      panel_bytes_(static_cast<size_t>(cols) * kPanelCols * StorageBytes(storage)),
      data_(AllocateOrThrow(panel_bytes_ * static_cast<size_t>(num_panels_))) {
  if (storage == Storage::kInt8) {
    scales_ = std::make_unique<float[]>(static_cast<size_t>(num_panels_ * kPanelCols));
  }
}

size_t PackedMatrix::bytes() const {
  const size_t scales = scales_ ? static_cast<size_t>(num_panels_ * kPanelCols) * 4 : 0;
  return panel_bytes_ * static_cast<size_t>(num_panels_) + scales;
}

void PackedMatrix::ReadRow(int64_t row, float* out) const {
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
      case Storage::kInt8:
        out[k] = static_cast<float>(reinterpret_cast<const int8_t*>(from)[k * kPanelCols]) *
                 scales_[static_cast<size_t>(row)];
        break;
    }
  }
}

std::unique_ptr<Matrix> PackMatrix(std::span<const HostMatrix> parts, WeightFormat format) {
  int64_t rows = 0;
  for (const HostMatrix& part : parts) rows += part.rows;
  const int64_t cols = parts.empty() ? 0 : parts.front().cols;
  auto matrix = std::make_unique<PackedMatrix>(rows, cols, ChooseStorage(parts, format));
  std::vector<float> channel(static_cast<size_t>(cols));
  int64_t row = 0;
  for (const HostMatrix& part : parts) {
    for (int64_t from = 0; from < part.rows; ++from) {
      PackRow(part, from, row++, *matrix, channel);
    }
  }
  return matrix;
}

}  // namespace eta::cpu
