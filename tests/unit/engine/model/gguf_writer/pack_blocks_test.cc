#include "engine/model/gguf_writer/pack_blocks.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace eta {
namespace {

GgmlLayout LayoutOf(GgmlType type) {
  return *FindGgmlLayout(static_cast<uint32_t>(type));
}

std::vector<float> Unpacked(const GgmlLayout& layout, const std::vector<float>& values) {
  const auto blocks = PackBlocks(layout, values);
  EXPECT_TRUE(blocks.ok()) << blocks.status();
  std::vector<std::byte> out(values.size() * SizeOf(layout.unpacked));
  UnpackBlocks(layout, *blocks, out);
  std::vector<float> numbers(values.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = LoadElement(layout.unpacked, out.data(), static_cast<int64_t>(i));
  }
  return numbers;
}

TEST(PackBlocks, TypesWithoutBlocksRoundToNearest) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> values(100);
  for (float& value : values) value = normal(random);
  EXPECT_EQ(Unpacked(LayoutOf(GgmlType::kF32), values), values);
  for (const GgmlType type : {GgmlType::kF16, GgmlType::kBF16}) {
    const std::vector<float> numbers = Unpacked(LayoutOf(type), values);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(numbers[i], RoundTo(LayoutOf(type).unpacked, values[i]));
    }
  }
}

// A block by hand: the greatest is 127 * 0.5, so that the scale is a half to the bit.
TEST(PackBlocks, ABlockOfQ8IsOneScaleAndWholeNumbers) {
  std::vector<float> values(32, 0.0f);
  values[0] = -63.5f;
  values[1] = 0.25f;  // half a step: away from zero
  values[2] = -0.25f;
  values[3] = 0.24f;
  values[31] = 10.0f;
  const auto blocks = PackBlocks(LayoutOf(GgmlType::kQ8_0), values).value();
  ASSERT_EQ(blocks.size(), 34u);
  uint16_t scale;
  std::memcpy(&scale, blocks.data(), sizeof(scale));
  EXPECT_EQ(HalfToFloat(scale), 0.5f);
  const auto number = [&](size_t i) { return static_cast<int8_t>(blocks[2 + i]); };
  EXPECT_EQ(number(0), -127);
  EXPECT_EQ(number(1), 1);
  EXPECT_EQ(number(2), -1);
  EXPECT_EQ(number(3), 0);
  EXPECT_EQ(number(31), 20);
}

TEST(PackBlocks, Q8IsWithinHalfAStep) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0.0f, 0.05f);
  std::vector<float> values(32 * 50);
  for (float& value : values) value = normal(random);
  const std::vector<float> numbers = Unpacked(LayoutOf(GgmlType::kQ8_0), values);
  for (size_t block = 0; block < values.size(); block += 32) {
    float most = 0.0f;
    for (size_t i = block; i < block + 32; ++i) most = std::max(most, std::abs(values[i]));
    // The scale is rounded to float16: up to 127 steps of a relative error of 2^-11.
    const float bound = most / 127.0f * (0.5f + 127.0f / 2048.0f) * 1.001f;
    for (size_t i = block; i < block + 32; ++i) EXPECT_NEAR(numbers[i], values[i], bound);
  }
}

TEST(PackBlocks, ZerosAndTheSmallestStayZero) {
  const GgmlLayout layout = LayoutOf(GgmlType::kQ8_0);
  const std::vector<float> zeros(32, 0.0f);
  EXPECT_EQ(Unpacked(layout, zeros), zeros);
  const std::vector<float> smallest(32, std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(Unpacked(layout, smallest), zeros);
}

TEST(PackBlocks, WhatATypeCannotHoldIsNamed) {
  std::vector<float> values(64, 1.0f);
  values[40] = NAN;
  for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kF16, GgmlType::kF32}) {
    EXPECT_EQ(PackBlocks(LayoutOf(type), values).status().code(), absl::StatusCode::kOutOfRange);
  }
  values[40] = 1e9f;
  EXPECT_EQ(std::string(PackBlocks(LayoutOf(GgmlType::kQ8_0), values).status().message()),
            "element 32 or one of its block cannot be stored as Q8_0");
  EXPECT_EQ(std::string(PackBlocks(LayoutOf(GgmlType::kF16), values).status().message()),
            "element 40 or one of its block cannot be stored as F16");
  EXPECT_TRUE(PackBlocks(LayoutOf(GgmlType::kBF16), values).ok());
}

}  // namespace
}  // namespace eta
