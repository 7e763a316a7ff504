#include "engine/model/gguf_writer/pack_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace eta {
namespace {

constexpr float kMostQ8 = 127.0f;

// False: the scale is beyond float16, or a number is not finite.
bool PackQ8(std::span<const float> values, std::byte* block) {
  float most = 0.0f;
  for (const float value : values) {
    if (!std::isfinite(value)) return false;
    most = std::max(most, std::abs(value));
  }
  const float scale = most / kMostQ8;
  const uint16_t half = FloatToHalf(scale);
  if (!std::isfinite(HalfToFloat(half))) return false;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  std::memcpy(block, &half, sizeof(half));
  for (size_t i = 0; i < values.size(); ++i) {
    // Half-way cases away from zero, as ggml's. The inverse of a scale below all float32's is
    // infinite, and what it multiplies is as good as zero.
    const float rounded = std::isfinite(inverse) ? std::round(values[i] * inverse) : 0.0f;
    const auto value = static_cast<int8_t>(std::clamp(rounded, -kMostQ8, kMostQ8));
    std::memcpy(block + sizeof(half) + i, &value, 1);
  }
  return true;
}

absl::Status TooLarge(size_t first, const GgmlLayout& layout) {
  return absl::OutOfRangeError(
      absl::StrCat("element ", first, " or one of its block cannot be stored as ", layout.name));
}

}  // namespace

absl::StatusOr<std::vector<std::byte>> PackBlocks(const GgmlLayout& layout,
                                                  std::span<const float> values) {
  const size_t count = layout.block_elements;
  std::vector<std::byte> blocks(values.size() / count * layout.block_bytes);
  std::byte* block = blocks.data();
  for (size_t first = 0; first < values.size(); first += count, block += layout.block_bytes) {
    if (layout.type == GgmlType::kQ8_0) {
      if (!PackQ8(values.subspan(first, count), block)) return TooLarge(first, layout);
      continue;
    }
    StoreElement(layout.unpacked, block, 0, values[first]);
    if (!std::isfinite(LoadElement(layout.unpacked, block, 0))) return TooLarge(first, layout);
  }
  return blocks;
}

}  // namespace eta
