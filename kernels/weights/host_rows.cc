#include "kernels/weights/host_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/quantize.h"
#include "kernels/weights/float8_scales.h"
#include "kernels/weights/integer_groups.h"
#include "kernels/weights/pack_groups.h"

namespace eta {
namespace {

bool IsPacked(const HostMatrix& matrix) {
  return matrix.blocks != nullptr && IsPacked(matrix.blocks->type);
}

std::span<const std::byte> StoredBlocks(const HostMatrix& matrix, int64_t row) {
  const size_t bytes = BlockRowBytes(*matrix.blocks, matrix.cols);
  return {static_cast<const std::byte*>(matrix.data) + static_cast<size_t>(row) * bytes, bytes};
}

void ReadFloat8(const HostMatrix& matrix, int64_t row, std::span<float> out) {
  static const auto numbers = [] {
    std::array<float, 256> all;
    for (size_t i = 0; i < all.size(); ++i) all[i] = E4M3ToFloat(static_cast<uint8_t>(i));
    return all;
  }();
  const auto* codes = static_cast<const uint8_t*>(matrix.data) + row * matrix.cols;
  for (int64_t k = 0; k < matrix.cols; ++k) {
    out[static_cast<size_t>(k)] = matrix.float8->At(row, k, matrix.cols) * numbers[codes[k]];
  }
}

// Magnitudes are ordered as their bits are. `sign`: its bit.
template <typename Bits>
std::optional<int64_t> FirstOver(std::span<const std::byte> numbers, Bits sign, Bits most) {
  for (size_t i = 0; i < numbers.size() / sizeof(Bits); ++i) {
    Bits bits;
    std::memcpy(&bits, numbers.data() + i * sizeof(Bits), sizeof(Bits));
    if (static_cast<Bits>(bits & ~sign) > most) return static_cast<int64_t>(i);
  }
  return std::nullopt;
}

}  // namespace

const GgmlLayout* PackedLayout(const HostMatrix& matrix, WeightFormat format) {
  static const GgmlLayout eight = *FindGgmlLayout(static_cast<uint32_t>(GgmlType::kQ8_0));
  static const GgmlLayout four = *FindGgmlLayout(static_cast<uint32_t>(GgmlType::kQ4_1));
  if (format == WeightFormat::kNative) return IsPacked(matrix) ? matrix.blocks : nullptr;
  if (format == WeightFormat::kUnpacked) return nullptr;
  const bool to_four = format == WeightFormat::kInt4 && !matrix.keeps_eight;
  const GgmlLayout* made = to_four ? &four : &eight;
  const bool stays =
      IsPacked(matrix) && FormOf(matrix.blocks->type).bits <= FormOf(made->type).bits;
  return stays ? matrix.blocks : made;
}

float MostWeight(WeightFormat format) {
  if (format == WeightFormat::kInt8) return kMostQ8_0;
  if (format == WeightFormat::kInt4) return kMostQ4_1;
  return std::numeric_limits<float>::infinity();
}

std::optional<int64_t> FirstOverMost(std::span<const std::byte> numbers, DType dtype,
                                     WeightFormat format) {
  if (dtype == DType::kFloat16) return std::nullopt;
  const auto most = std::bit_cast<uint32_t>(MostWeight(format));
  if (dtype == DType::kFloat32) return FirstOver<uint32_t>(numbers, 0x8000'0000, most);
  // A bfloat16 is the upper half of a float32.
  return FirstOver<uint16_t>(numbers, 0x8000, static_cast<uint16_t>(most >> 16));
}

size_t BlockRowBytes(const GgmlLayout& layout, int64_t cols) {
  const size_t elements = layout.block_elements;
  return (static_cast<size_t>(cols) + elements - 1) / elements * layout.block_bytes;
}

void ReadFloats(const HostMatrix& matrix, int64_t row, std::span<float> out) {
  if (IsPacked(matrix)) {
    UnpackBlocks(*matrix.blocks, StoredBlocks(matrix, row), std::as_writable_bytes(out));
    return;
  }
  if (matrix.float8 != nullptr) return ReadFloat8(matrix, row, out);
  for (int64_t k = 0; k < matrix.cols; ++k) {
    out[static_cast<size_t>(k)] = LoadElement(matrix.dtype, matrix.data, row * matrix.cols + k);
  }
}

void ReadBlocks(const HostMatrix& matrix, int64_t row, const GgmlLayout& layout,
                std::span<std::byte> out) {
  if (IsPacked(matrix) && matrix.blocks->type == layout.type) {
    const std::span<const std::byte> stored = StoredBlocks(matrix, row);
    std::memcpy(out.data(), stored.data(), stored.size());
    return;
  }
  thread_local std::vector<float> values;
  values.resize(static_cast<size_t>(matrix.cols));
  ReadFloats(matrix, row, values);
  const auto pack = layout.type == GgmlType::kQ4_1 ? PackQ4_1 : PackQ8_0;
  for (std::span<const float> rest(values); !rest.empty();) {
    const auto group = rest.first(std::min<size_t>(kGroupNumbers, rest.size()));
    pack(group, out.data());
    rest = rest.subspan(group.size());
    out = out.subspan(layout.block_bytes);
  }
}

}  // namespace eta
