#include "engine/request/tempered_keys.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t Bit(int position) {
  return uint64_t{1} << position;
}

TEST(TemperedKeys, BitsAreThoseOfSpecialTokens) {
  const std::vector<int32_t> special = {1, 2, 70};
  TemperedKeys keys(special, 200);
  EXPECT_THAT(keys.words(), IsEmpty());
  keys.Append(std::vector<int32_t>{1, 5, 70, 3});
  EXPECT_THAT(keys.words(), ElementsAre(Bit(0) | Bit(2)));
  keys.Append(std::vector<int32_t>(59, 3));
  keys.Append(std::vector<int32_t>{2});
  EXPECT_THAT(keys.words(), ElementsAre(Bit(0) | Bit(2) | Bit(63)));
}

TEST(TemperedKeys, EndWithTheLastWordThatHasABit) {
  const std::vector<int32_t> special = {1};
  TemperedKeys keys(special, 200);
  keys.Append(std::vector<int32_t>(150, 7));
  EXPECT_THAT(keys.words(), IsEmpty());
  keys.Append(std::vector<int32_t>{1, 7});
  EXPECT_THAT(keys.words(), ElementsAre(0u, 0u, Bit(150 - 128)));
}

TEST(TemperedKeys, AreTakenBackWithTheirTokens) {
  const std::vector<int32_t> special = {2};
  TemperedKeys keys(special, 200);
  const std::vector<int32_t> tokens(70, 2);
  keys.Append(tokens);
  keys.CutTo(3);
  EXPECT_THAT(keys.words(), ::testing::ElementsAre(7));
  keys.CutTo(5);  // there are not as many
  keys.Append(std::vector<int32_t>{1, 2});
  EXPECT_THAT(keys.words(), ::testing::ElementsAre(7 | 16));
  keys.CutTo(0);
  EXPECT_TRUE(keys.words().empty());
}

TEST(TemperedKeys, StayWhereTheyAre) {
  const std::vector<int32_t> special = {1};
  TemperedKeys keys(special, 1000);
  keys.Append(std::vector<int32_t>{1});
  const uint64_t* const words = keys.words().data();
  keys.Append(std::vector<int32_t>(999, 1));
  EXPECT_EQ(keys.words().size(), 16u);
  EXPECT_EQ(keys.words().data(), words) << "a step may read them meanwhile";
}

TEST(TemperedKeys, WithoutSpecialTokensThereAreNone) {
  TemperedKeys keys;
  keys.Append(std::vector<int32_t>{1, 2, 3});
  EXPECT_THAT(keys.words(), IsEmpty());
}

}  // namespace
}  // namespace eta
