#include "engine/tokenizer/pair_table.h"

#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <utility>

#include "gtest/gtest.h"

namespace eta {
namespace {

constexpr int32_t kLast = std::numeric_limits<int32_t>::max();

TEST(PairTable, MakesNothingWhileItIsEmpty) {
  const PairTable table;
  EXPECT_FALSE(table.Find(0, 0));
  EXPECT_FALSE(table.Find(-1, 3));
}

TEST(PairTable, KeepsBothSidesApart) {
  PairTable table;
  table.Insert(1, 2, {.piece = 12, .rank = 5});
  table.Insert(0, 0, {.piece = 0, .rank = 0});
  table.Insert(kLast, kLast, {.piece = kLast, .rank = 7});
  EXPECT_EQ(table.Find(1, 2).piece, 12);
  EXPECT_EQ(table.Find(1, 2).rank, 5U);
  EXPECT_TRUE(table.Find(0, 0));
  EXPECT_EQ(table.Find(kLast, kLast).piece, kLast);
  for (const auto& [left, right] : {std::pair(2, 1), {1, 1}, {2, 2}, {1, 0}, {kLast, 0}}) {
    EXPECT_FALSE(table.Find(left, right)) << left << ", " << right;
  }
}

TEST(PairTable, SymbolsThatAreNoneMakeNothing) {
  PairTable table;
  table.Insert(kLast, kLast, {.piece = 1, .rank = 1});
  EXPECT_FALSE(table.Find(-1, kLast));
  EXPECT_FALSE(table.Find(kLast, -1));
  EXPECT_FALSE(table.Find(-1, -1));
}

TEST(PairTable, APairKeepsWhatItMakes) {
  PairTable table;
  table.Insert(1, 2, {.piece = 12, .rank = 5});
  table.Insert(1, 2, {.piece = 13, .rank = 6});
  EXPECT_EQ(table.Find(1, 2).piece, 12);
}

// Small symbols, so that most pairs are asked for that are not there.
TEST(PairTable, IsAMap) {
  std::mt19937 random(1);
  PairTable table;
  std::map<std::pair<int32_t, int32_t>, int32_t> map;
  const auto symbol = [&] { return static_cast<int32_t>(random() % 200); };
  for (int32_t piece = 0; piece < 10'000; ++piece) {
    const std::pair<int32_t, int32_t> pair(symbol(), symbol());
    map.emplace(pair, piece);
    table.Insert(pair.first, pair.second, {.piece = piece, .rank = 1});
  }
  for (int32_t left = 0; left < 200; ++left) {
    for (int32_t right = 0; right < 200; ++right) {
      const auto known = map.find({left, right});
      ASSERT_EQ(table.Find(left, right).piece, known == map.end() ? -1 : known->second);
    }
  }
}

}  // namespace
}  // namespace eta
