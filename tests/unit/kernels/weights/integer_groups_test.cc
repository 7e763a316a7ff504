#include "kernels/weights/integer_groups.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/testing/kernels/random_blocks.h"

namespace eta {
namespace {

using testing::PackedLayouts;
using testing::Random;
using testing::RandomBlocks;

std::vector<IntegerGroup> Decoded(const GgmlLayout& layout, std::span<const std::byte> blocks) {
  std::vector<IntegerGroup> groups(blocks.size() / layout.block_bytes * layout.block_elements /
                                   kGroupNumbers);
  DecodeGroups(layout, blocks, groups);
  return groups;
}

TEST(IntegerGroups, AreAllNineTypes) {
  EXPECT_EQ(PackedLayouts().size(), 9u);
  EXPECT_FALSE(IsPacked(GgmlType::kF32));
  EXPECT_FALSE(IsPacked(GgmlType::kBF16));
}

// The formula of the contract, in double, against ggml's numbers.
TEST(IntegerGroups, GiveTheNumbersOfGgml) {
  Random random(1);
  for (const GgmlLayout& layout : PackedLayouts()) {
    SCOPED_TRACE(layout.name);
    const auto blocks = RandomBlocks(random, layout, 20);
    std::vector<float> numbers(20 * layout.block_elements);
    UnpackBlocks(layout, blocks, std::as_writable_bytes(std::span(numbers)));
    const auto groups = Decoded(layout, blocks);
    ASSERT_EQ(groups.size() * kGroupNumbers, numbers.size());
    const IntegerForm form = FormOf(layout.type);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const IntegerGroup& group = groups[i / kGroupNumbers];
      const size_t at = i % kGroupNumbers;
      const int q = group.q[at];
      ASSERT_GE(q + form.offset, 0);
      ASSERT_LT(q + form.offset, form.coded ? 32 : 1 << form.bits);
      const size_t half = at / (kGroupNumbers / 2);
      if (form.scales == 1) {
        ASSERT_EQ(group.factor[0], group.factor[1]);
      }
      const double exact = static_cast<double>(group.unit) * group.factor[half] * q -
                           static_cast<double>(group.low_unit) * group.low_factor;
      ASSERT_EQ(numbers[i], static_cast<float>(exact)) << "number " << i;
      if (!form.has_low) {
        ASSERT_EQ(group.low_unit, 0.0f);
      }
    }
  }
}

// What the contract takes for granted: scales are exact in float32.
TEST(IntegerGroups, HaveExactScales) {
  Random random(2);
  for (const GgmlLayout& layout : PackedLayouts()) {
    const auto blocks = RandomBlocks(random, layout, 20);
    for (const IntegerGroup& group : Decoded(layout, blocks)) {
      for (const size_t half : {0, 1}) {
        EXPECT_EQ(group.scale(half), static_cast<double>(group.unit) * group.factor[half]);
      }
      EXPECT_EQ(group.low(), static_cast<double>(group.low_unit) * group.low_factor);
    }
  }
}

TEST(IntegerGroups, KeepAScaleThatIsNotFinite) {
  const GgmlLayout layout = *FindGgmlLayout(static_cast<uint32_t>(GgmlType::kQ4_1));
  std::vector<std::byte> block(layout.block_bytes);
  const uint16_t halves[] = {0x7C00, 0x7E00};
  std::memcpy(block.data(), halves, sizeof(halves));
  const auto groups = Decoded(layout, block);
  EXPECT_TRUE(std::isinf(groups[0].scale(0)));
  EXPECT_TRUE(std::isnan(groups[0].low()));
}

}  // namespace
}  // namespace eta
