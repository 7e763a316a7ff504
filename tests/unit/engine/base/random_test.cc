#include "engine/base/random.h"

#include <gtest/gtest.h>

#include <set>

namespace eta {
namespace {

// Known answers of the generator's authors (Random123, kat_vectors: philox4x32 10).
TEST(Random, PhiloxMatchesItsAuthors) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Random, DrawsDependOnSeedAndIndexAlone) {
  EXPECT_EQ(UniformDraw(5, 9), UniformDraw(5, 9));
  EXPECT_NE(UniformDraw(5, 9), UniformDraw(5, 10));
  EXPECT_NE(UniformDraw(5, 9), UniformDraw(6, 9));
}

TEST(Random, DrawsAreUniform) {
  int below[10] = {};
  constexpr int kDraws = 100'000;
  for (int i = 0; i < kDraws; ++i) {
    const double draw = UniformDraw(42, static_cast<uint64_t>(i));
    ASSERT_GE(draw, 0.0);
    ASSERT_LT(draw, 1.0);
    ++below[static_cast<int>(draw * 10)];
  }
  for (const int count : below) EXPECT_NEAR(count, kDraws / 10, 5 * 95) << "five deviations";
}

}  // namespace
}  // namespace eta
