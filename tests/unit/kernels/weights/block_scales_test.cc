#include "kernels/weights/block_scales.h"

#include <cmath>

#include "engine/checkpoint/safetensors.h"
#include "gtest/gtest.h"
#include "tests/testing/engine/gguf_blocks.h"

namespace eta::testing {
namespace {

constexpr size_t kBlocks = 5;
constexpr uint16_t kNotFinite[] = {0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF};

std::vector<std::byte> Unpacked(const GgmlLayout& layout, std::span<const std::byte> blocks) {
  std::vector<std::byte> numbers(blocks.size() / layout.block_bytes * layout.block_elements *
                                 sizeof(float));
  UnpackBlocks(layout, blocks, numbers);
  return numbers;
}

TEST(FirstNonFiniteBlock, NamesTheBlockOfAScaleOrMinimumThatIsNone) {
  std::mt19937 random(3);
  for (const GgmlType type : kBlockTypes) {
    const GgmlLayout layout = LayoutOf(type);
    SCOPED_TRACE(layout.name);
    const std::vector<std::byte> sound = GgufBlocks(type, kBlocks, 1.0f, random);
    EXPECT_EQ(FirstNonFiniteBlock(layout, sound), std::nullopt);
    for (const size_t at : HalvesOf(type)) {
      for (size_t block = 0; block < kBlocks; ++block) {
        for (const uint16_t half : kNotFinite) {
          std::vector<std::byte> blocks = sound;
          SetHalf(&blocks[block * layout.block_bytes + at], half);
          EXPECT_EQ(FirstNonFiniteBlock(layout, blocks), block) << half << " at " << at;
          // The numbers themselves say the same.
          EXPECT_EQ(FirstNonFinite(Unpacked(layout, blocks), DType::kFloat32),
                    block * layout.block_elements);
        }
      }
    }
  }
}

// All other bytes may be anything, and so may finite scales: the largest, the least and -0.
TEST(FirstNonFiniteBlock, TakesEveryNumber) {
  for (const GgmlType type : kBlockTypes) {
    const GgmlLayout layout = LayoutOf(type);
    if (type == GgmlType::kMXFP4) continue;  // below
    SCOPED_TRACE(layout.name);
    for (const uint16_t half : {0x0000, 0x8000, 0x0001, 0x7BFF, 0xFBFF}) {
      std::vector<std::byte> blocks(layout.block_bytes, std::byte{0xFF});
      for (const size_t at : HalvesOf(type)) SetHalf(&blocks[at], half);
      EXPECT_EQ(FirstNonFiniteBlock(layout, blocks), std::nullopt) << half;
      EXPECT_EQ(FirstNonFinite(Unpacked(layout, blocks), DType::kFloat32), std::nullopt) << half;
    }
  }
  EXPECT_EQ(FirstNonFiniteBlock(LayoutOf(GgmlType::kQ6_K), {}), std::nullopt);
}

// A byte e is 2^(e - 127), times codes of up to 6; 255 is NaN.
TEST(FirstNonFiniteBlock, OfMxfp4IsOneWhoseLargestCodeIsBeyondFloat32) {
  const GgmlLayout layout = LayoutOf(GgmlType::kMXFP4);
  for (int scale = 0; scale < 256; ++scale) {
    std::vector<std::byte> blocks(2 * layout.block_bytes, std::byte{0xF7});  // codes of 6 and -6
    blocks[0] = std::byte{0};
    blocks[layout.block_bytes] = static_cast<std::byte>(scale);
    const auto first = FirstNonFiniteBlock(layout, blocks);
    EXPECT_EQ(first, scale <= 252 ? std::nullopt : std::optional<int64_t>(1)) << scale;
    EXPECT_EQ(FirstNonFinite(Unpacked(layout, blocks), DType::kFloat32).has_value(),
              first.has_value())
        << scale;
  }
}

TEST(FirstNonFiniteBlock, KnowsNoScalesOfNumbersThatAreNotQuantised) {
  const std::vector<std::byte> numbers(8, std::byte{0xFF});
  for (const GgmlType type : {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16}) {
    EXPECT_EQ(FirstNonFiniteBlock(LayoutOf(type), numbers), std::nullopt);
  }
}

}  // namespace
}  // namespace eta::testing
