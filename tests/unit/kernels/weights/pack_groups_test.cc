#include "kernels/weights/pack_groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/weights/host_rows.h"
#include "kernels/weights/integer_groups.h"
#include "tests/testing/kernels/random_blocks.h"

namespace eta {
namespace {

using testing::HostTensor;
using testing::Random;

GgmlLayout LayoutOf(GgmlType type) {
  return *FindGgmlLayout(static_cast<uint32_t>(type));
}

using Pack = bool (*)(std::span<const float>, std::byte*);

std::vector<float> Repacked(GgmlType type, Pack pack, std::span<const float> values, bool fits) {
  const GgmlLayout layout = LayoutOf(type);
  std::vector<std::byte> block(layout.block_bytes);
  EXPECT_EQ(pack(values, block.data()), fits);
  std::vector<float> numbers(layout.block_elements);
  UnpackBlocks(layout, block, std::as_writable_bytes(std::span(numbers)));
  return numbers;
}

double SquaredError(std::span<const float> values, std::span<const float> numbers) {
  double error = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    error += (double{values[i]} - numbers[i]) * (double{values[i]} - numbers[i]);
  }
  return error;
}

TEST(PackQ4, IsNoWorseThanALineThroughBothEnds) {
  Random random(5);
  double ours = 0.0;
  double plain = 0.0;
  for (int i = 0; i < 300; ++i) {
    const auto values = testing::Normal(random, 1, 32, 0.05f).data;
    const double error = SquaredError(values, Repacked(GgmlType::kQ4_1, PackQ4_1, values, true));
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    const float scale = HalfToFloat(FloatToHalf((*most - *least) / 15.0f));
    const float low = HalfToFloat(FloatToHalf(*least));
    std::vector<float> on_line(32);
    for (size_t k = 0; k < 32; ++k) {
      on_line[k] = std::clamp(std::round((values[k] - low) / scale), 0.0f, 15.0f) * scale + low;
    }
    const double simple = SquaredError(values, on_line);
    EXPECT_LE(error, simple * 1.0001 + 1e-12);
    ours += error;
    plain += simple;
  }
  EXPECT_LT(ours, 0.92 * plain);
}

// 32 numbers on 16 levels, and what moved them off: `drift` steps, as a deviation.
struct Drifted {
  std::vector<float> levels;
  std::vector<float> values;
};

Drifted Drift(Random& random, float step, float drift) {
  Drifted made;
  const std::vector<float> moves = testing::Normal(random, 1, 32, drift * step).data;
  for (size_t i = 0; i < 32; ++i) {
    const int q =
        i < 2 ? static_cast<int>(i) * 15 : static_cast<int>(testing::Uniform(random, 0, 15));
    made.levels.push_back(step * (static_cast<float>(q) - 7.0f));
    made.values.push_back(made.levels.back() + moves[i]);
  }
  return made;
}

// The share of what moved numbers off their levels that is left of it in their blocks.
double ShareKept(float drift, double* error) {
  constexpr float kStep = 0.03125f;
  Random random(13);
  double kept = 0.0;
  double whole = 0.0;
  double squares = 0.0;
  for (int block = 0; block < 2000; ++block) {
    const Drifted made = Drift(random, kStep, drift);
    const auto numbers = Repacked(GgmlType::kQ4_1, PackQ4_1, made.values, true);
    for (size_t i = 0; i < 32; ++i) {
      const double moved = double{made.values[i]} - made.levels[i];
      kept += moved * (double{numbers[i]} - made.levels[i]);
      whole += moved * moved;
      squares += (double{numbers[i]} - made.values[i]) * (double{numbers[i]} - made.values[i]);
    }
  }
  *error = std::sqrt(squares / (2000 * 32)) / kStep;
  return kept / whole;
}

TEST(PackQ4, WhatTrainingMovedOffFourBitsIsKept) {
  double error = 0.0;
  for (const float drift : {0.06f, 0.09f, 0.12f}) {
    SCOPED_TRACE(drift);
    EXPECT_NEAR(ShareKept(drift, &error), 1.0, 0.1);
    EXPECT_LT(error, 0.3);
  }
}

TEST(PackQ4, NumbersOnSixteenLevelsStayOnThem) {
  double error = 0.0;
  // As bfloat16 rounds what is up to 8 steps.
  ShareKept(0.01f, &error);
  EXPECT_LT(error, 0.0105);
  Random random(14);
  for (int block = 0; block < 100; ++block) {
    const Drifted made = Drift(random, 0.03125f, 0.0f);
    EXPECT_EQ(Repacked(GgmlType::kQ4_1, PackQ4_1, made.values, true), made.levels);
  }
}

TEST(PackQ4, AFewLevelsAreNotDithered) {
  Random random(15);
  for (int block = 0; block < 200; ++block) {
    // One large number beside many small ones.
    std::vector<float> values = testing::Normal(random, 1, 32, 0.1f).data;
    values[9] = 15.0f;
    const auto numbers = Repacked(GgmlType::kQ4_1, PackQ4_1, values, true);
    const auto [least, most] = std::minmax_element(numbers.begin(), numbers.end());
    std::vector<float> levels;
    for (const float number : numbers) {
      if (std::find(levels.begin(), levels.end(), number) == levels.end()) levels.push_back(number);
    }
    if (levels.size() >= 6) continue;
    const float step = (*most - *least) / 15.0f;
    for (size_t i = 0; i < 32; ++i) EXPECT_LE(std::abs(numbers[i] - values[i]), 0.6f * step);
  }
}

TEST(PackQ4, EqualNumbersMakeEqualBlocks) {
  Random random(16);
  const Drifted made = Drift(random, 0.01f, 0.1f);
  const auto once = Repacked(GgmlType::kQ4_1, PackQ4_1, made.values, true);
  EXPECT_EQ(once, Repacked(GgmlType::kQ4_1, PackQ4_1, made.values, true));
}

TEST(PackQ4, ShortAndConstantGroups) {
  for (const float value : {0.0f, -0.0f, 0.5f, -3.0f, std::numeric_limits<float>::denorm_min()}) {
    for (const size_t count : {1, 5, 32}) {
      const auto numbers =
          Repacked(GgmlType::kQ4_1, PackQ4_1, std::vector<float>(count, value), true);
      for (size_t i = 0; i < count; ++i) EXPECT_NEAR(numbers[i], value, 1e-7f);
    }
  }
  const std::vector<float> two = {1.0f, -1.0f};
  const auto numbers = Repacked(GgmlType::kQ4_1, PackQ4_1, two, true);
  EXPECT_NEAR(numbers[0], 1.0f, 1e-3f);
  EXPECT_NEAR(numbers[1], -1.0f, 1e-3f);
}

TEST(PackGroups, WhatDoesNotFitBecomesNan) {
  for (const float bad : {NAN, INFINITY, 3e9f}) {
    std::vector<float> values(32, 1.0f);
    values[7] = bad;
    for (const float number : Repacked(GgmlType::kQ4_1, PackQ4_1, values, false)) {
      EXPECT_TRUE(std::isnan(number));
    }
    for (const float number : Repacked(GgmlType::kQ8_0, PackQ8_0, values, false)) {
      EXPECT_TRUE(std::isnan(number));
    }
  }
}

// The limits that the loader checks.
TEST(PackGroups, WhatIsWithinTheLimitFits) {
  Random random(8);
  const auto expect = [&](GgmlType type, Pack pack, float most) {
    for (int i = 0; i < 50; ++i) {
      std::vector<float> values(32);
      for (float& value : values) value = testing::Often(random, 2) ? most : -most;
      const float step = most / (type == GgmlType::kQ8_0 ? 254.0f : 14.0f);
      const std::vector<float> numbers = Repacked(type, pack, values, true);
      for (size_t k = 0; k < values.size(); ++k) EXPECT_NEAR(numbers[k], values[k], step);
    }
    Repacked(type, pack, std::vector<float>(32, 1.01f * most), false);
  };
  expect(GgmlType::kQ8_0, PackQ8_0, kMostQ8_0);
  expect(GgmlType::kQ4_1, PackQ4_1, kMostQ4_1);
}

TEST(HostRows, NameTheFirstNumberOverTheLimit) {
  std::vector<float> floats = {0.0f, -65504.0f, 65504.01f, -8319008.0f, 8319009.0f, NAN};
  const auto bytes = std::as_bytes(std::span(floats));
  EXPECT_EQ(FirstOverMost(bytes, DType::kFloat32, WeightFormat::kInt4), 2);
  EXPECT_EQ(FirstOverMost(bytes, DType::kFloat32, WeightFormat::kInt8), 4);
  EXPECT_EQ(FirstOverMost(bytes, DType::kFloat32, WeightFormat::kNative), 5);
  EXPECT_EQ(FirstOverMost({}, DType::kFloat32, WeightFormat::kInt4), std::nullopt);
  // 65280 and 65536 are neighbours in bfloat16.
  const std::vector<uint16_t> halves = {0x477F, 0xC77F, 0xC780};
  const auto narrow = std::as_bytes(std::span(halves));
  EXPECT_EQ(FirstOverMost(narrow, DType::kBFloat16, WeightFormat::kInt4), 2);
  EXPECT_EQ(FirstOverMost(narrow, DType::kBFloat16, WeightFormat::kInt8), std::nullopt);
  EXPECT_EQ(FirstOverMost(narrow, DType::kFloat16, WeightFormat::kInt4), std::nullopt);
}

TEST(PackedLayout, KeepsBlocksOfNoMoreBits) {
  const auto type = [](const HostMatrix& matrix, WeightFormat format) {
    const GgmlLayout* layout = PackedLayout(matrix, format);
    return layout == nullptr ? GgmlType::kF32 : layout->type;
  };
  const HostMatrix floats{nullptr, DType::kBFloat16, 1, 32};
  EXPECT_EQ(type(floats, WeightFormat::kNative), GgmlType::kF32);
  EXPECT_EQ(type(floats, WeightFormat::kInt8), GgmlType::kQ8_0);
  EXPECT_EQ(type(floats, WeightFormat::kInt4), GgmlType::kQ4_1);
  for (const GgmlLayout& layout : testing::PackedLayouts()) {
    const HostMatrix blocks{nullptr, DType::kFloat32, 1, 256, &layout};
    EXPECT_EQ(type(blocks, WeightFormat::kNative), layout.type);
    EXPECT_EQ(type(blocks, WeightFormat::kInt8), layout.type);
    EXPECT_EQ(type(blocks, WeightFormat::kInt4),
              FormOf(layout.type).bits == 4 ? layout.type : GgmlType::kQ4_1);
    HostMatrix kept = blocks;
    kept.keeps_eight = true;
    EXPECT_EQ(type(kept, WeightFormat::kInt4), layout.type);
  }
  HostMatrix kept = floats;
  kept.keeps_eight = true;
  EXPECT_EQ(type(kept, WeightFormat::kInt4), GgmlType::kQ8_0);
  EXPECT_EQ(type(kept, WeightFormat::kInt8), GgmlType::kQ8_0);
  EXPECT_EQ(type(kept, WeightFormat::kNative), GgmlType::kF32);
  const GgmlLayout half = LayoutOf(GgmlType::kF16);
  EXPECT_EQ(type({nullptr, DType::kFloat16, 1, 32, &half}, WeightFormat::kNative), GgmlType::kF32);
}

TEST(HostRows, ARaggedRowIsFilledUpWithZeros) {
  Random random(6);
  const HostTensor values = testing::Normal(random, 3, 45);
  std::vector<std::byte> storage;
  const HostMatrix matrix = testing::ToHostMatrix(values, DType::kBFloat16, storage);
  const GgmlLayout layout = LayoutOf(GgmlType::kQ8_0);
  std::vector<std::byte> blocks(BlockRowBytes(layout, 45));
  ASSERT_EQ(blocks.size(), 2u * 34);
  ReadBlocks(matrix, 2, layout, blocks);
  std::array<float, 64> numbers;
  UnpackBlocks(layout, blocks, std::as_writable_bytes(std::span(numbers)));
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_NEAR(numbers[i], i < 45 ? values.row(2)[i] : 0.0f, 0.03f) << i;
  }
}

TEST(HostRows, BlocksOfMoreBitsAreMadeAnew) {
  Random random(7);
  const GgmlLayout six = LayoutOf(GgmlType::kQ6_K);
  std::vector<std::byte> storage;
  const HostMatrix matrix = testing::RandomPackedMatrix(random, six, 2, 512, storage);
  const GgmlLayout* four = PackedLayout(matrix, WeightFormat::kInt4);
  std::vector<std::byte> blocks(BlockRowBytes(*four, 512));
  ReadBlocks(matrix, 1, *four, blocks);
  std::vector<float> numbers(512);
  UnpackBlocks(*four, blocks, std::as_writable_bytes(std::span(numbers)));
  const HostTensor exact = testing::Unpacked(matrix);
  EXPECT_LT(testing::RelativeError(numbers.data(), exact.row(1), 512), 0.1);
}

}  // namespace
}  // namespace eta
