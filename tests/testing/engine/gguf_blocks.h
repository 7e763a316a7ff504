// Random blocks of each quantised type, of the size that weights have.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/weights/ggml_type.h"
#include "tests/testing/kernels/block_halves.h"

namespace eta::testing {

inline constexpr std::array<GgmlType, 9> kBlockTypes = {
    GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1,
    GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K, GgmlType::kMXFP4};

inline GgmlLayout LayoutOf(GgmlType type) {
  return *FindGgmlLayout(static_cast<uint32_t>(type));
}

inline void SetHalf(std::byte* at, uint16_t half) {
  std::memcpy(at, &half, sizeof(half));
}

// Blocks whose numbers spread around 0 with about this deviation. Integers are of the whole range.
inline std::vector<std::byte> GgufBlocks(GgmlType type, size_t count, float deviation,
                                         std::mt19937& random) {
  const GgmlLayout layout = LayoutOf(type);
  std::vector<std::byte> blocks(count * layout.block_bytes);
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(random());
  std::uniform_real_distribution<float> spread(0.5f, 1.5f);
  for (size_t block = 0; block < count; ++block) {
    std::byte* const bytes = &blocks[block * layout.block_bytes];
    const float size = deviation * spread(random);
    // `scale` takes the integers' deviation to 1; `low` centres them.
    const auto set = [&](float scale, float low) {
      const std::vector<size_t> at = HalvesOf(type);
      SetHalf(bytes + at[0], FloatToHalf(size * scale));
      if (at.size() > 1) SetHalf(bytes + at[1], FloatToHalf(size * scale * low));
    };
    switch (type) {
      case GgmlType::kQ8_0:
        set(1 / 74.0f, 0);
        break;
      case GgmlType::kQ4_0:
      case GgmlType::kQ4_1:
        set(1 / 4.6f, -7.5f);
        break;
      case GgmlType::kQ5_0:
      case GgmlType::kQ5_1:
        set(1 / 9.2f, -15.5f);
        break;
      case GgmlType::kQ4_K:  // the minimum counts downwards, and scales are of six bits
        set(1 / 250.0f, 7.5f);
        break;
      case GgmlType::kQ5_K:
        set(1 / 500.0f, 15.5f);
        break;
      case GgmlType::kQ6_K:
        set(1 / 1360.0f, 0);
        break;
      case GgmlType::kMXFP4:  // the exponent of a power of two, near enough
        bytes[0] = static_cast<std::byte>(128 + static_cast<int>(std::log2(size / 5.8f)));
        break;
      default:
        break;
    }
  }
  return blocks;
}

}  // namespace eta::testing
