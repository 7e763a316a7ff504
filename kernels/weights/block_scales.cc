// lint: fuzz-covered
#include "kernels/weights/block_scales.h"

#include <array>
#include <cstring>

namespace eta {
namespace {

// Where the float16 numbers of a block begin, in bytes.
struct Halves {
  int count = 0;
  std::array<uint32_t, 2> at = {};
};

Halves HalvesOf(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
    case GgmlType::kF16:
    case GgmlType::kBF16:
      return {};
    case GgmlType::kQ8_0:
    case GgmlType::kQ4_0:
    case GgmlType::kQ5_0:
      return {1, {0}};
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_1:
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K:
      return {2, {0, 2}};
    case GgmlType::kQ6_K:
      return {1, {208}};
    case GgmlType::kMXFP4:
      return {};
  }
  return {};
}

// Little-endian, as the host is.
bool IsFinite(const std::byte* half) {
  uint16_t bits;
  std::memcpy(&bits, half, sizeof(bits));
  return (bits & 0x7C00) != 0x7C00;
}

// Of blocks that begin with a scale of e8m0: 255 is NaN, and above this 6, the largest code, times
// the scale is beyond float32.
constexpr std::byte kMostScale{252};

std::optional<int64_t> FirstScaleBeyond(const GgmlLayout& layout,
                                        std::span<const std::byte> blocks) {
  for (size_t begin = 0; begin < blocks.size(); begin += layout.block_bytes) {
    if (blocks[begin] > kMostScale) return static_cast<int64_t>(begin / layout.block_bytes);
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> FirstNonFiniteBlock(const GgmlLayout& layout,
                                           std::span<const std::byte> blocks) {
  if (layout.type == GgmlType::kMXFP4) return FirstScaleBeyond(layout, blocks);
  const Halves halves = HalvesOf(layout.type);
  if (halves.count == 0) return std::nullopt;
  for (size_t begin = 0; begin < blocks.size(); begin += layout.block_bytes) {
    for (int i = 0; i < halves.count; ++i) {
      if (IsFinite(&blocks[begin + halves.at[static_cast<size_t>(i)]])) continue;
      return static_cast<int64_t>(begin / layout.block_bytes);
    }
  }
  return std::nullopt;
}

}  // namespace eta
