// A sequence's blocks where some layers see a window: what it holds, gives back, shares and names.
#include "engine/batching/blocks/block_tables.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr int32_t kBlock = 16;
constexpr int32_t kGone = BlockTables::kReleased;

LayerGroups GroupsOf(std::vector<int32_t> windows) {
  LayerGroups groups;
  groups.slots = 1;
  groups.windows = std::move(windows);
  return groups;
}

std::vector<PrefixKey> KeysOf(int32_t blocks, uint8_t first = 1) {
  std::vector<PrefixKey> keys(static_cast<size_t>(blocks));
  for (PrefixKey& key : keys) key.digest.fill(first++);
  return keys;
}

std::vector<int32_t> TokensOf(size_t blocks) {
  return std::vector<int32_t>(blocks * kBlock, 7);
}

// What a table holds, first to last.
std::vector<bool> Held(const BlockTables& tables, size_t group) {
  std::vector<bool> held;
  for (const int32_t block : tables.tables()[group]) held.push_back(block != kGone);
  return held;
}

class WindowTables : public ::testing::Test {
 protected:
  // Computes a prompt of whole blocks, `rows` rows a step, as a batcher does.
  void Prefill(BlockTables& tables, std::span<const PrefixKey> keys, int32_t rows) {
    const auto tokens = static_cast<int32_t>(keys.size()) * kBlock;
    const std::vector<int32_t> ids = TokensOf(keys.size());
    for (int32_t at = 0; at < tokens;) {
      const int32_t end = std::min(tokens, at + rows);
      ASSERT_TRUE(tables.Grow(pool_, tokens, end));
      tables.Publish(pool_, keys, static_cast<size_t>(at / kBlock),
                     static_cast<size_t>(end / kBlock), ids);
      at = end;
      tables.ReleaseBehind(pool_, at);
    }
  }

  const LayerGroups groups_ = GroupsOf({0, 40});
  BlockPool pool_{64};
};

TEST_F(WindowTables, AWindowHoldsTheBlocksThatTheNextRowSees) {
  BlockTables tables(groups_, kBlock);
  EXPECT_TRUE(tables.empty());
  EXPECT_EQ(tables.Lacking(100, 32), 7 + 2);
  ASSERT_TRUE(tables.Grow(pool_, 100, 32));
  EXPECT_EQ(tables.lengths().full, 7);
  EXPECT_EQ(tables.lengths().window, 2);
  EXPECT_EQ(tables.Lacking(100, 32), 0);
  EXPECT_EQ(pool_.num_used(), 9);
  ASSERT_TRUE(tables.Grow(pool_, 100, 80));
  tables.ReleaseBehind(pool_, 54);  // which sees keys 15 to 54
  EXPECT_THAT(Held(tables, 1), ElementsAre(true, true, true, true, true));
  tables.ReleaseBehind(pool_, 55);
  EXPECT_THAT(Held(tables, 1), ElementsAre(false, true, true, true, true));
  tables.ReleaseBehind(pool_, 80);
  EXPECT_THAT(Held(tables, 1), ElementsAre(false, false, true, true, true));
  EXPECT_THAT(Held(tables, 0), Each(true)) << "full layers lose nothing";
  EXPECT_EQ(pool_.num_used(), 10);

  SequenceRows rows;
  tables.ApplyTo(rows);
  EXPECT_EQ(rows.table(0).size(), 7u);
  ASSERT_EQ(rows.table(1).size(), 5u);
  EXPECT_EQ(rows.table(1)[1], kGone);
  tables.Release(pool_);
  EXPECT_TRUE(tables.empty());
  EXPECT_EQ(pool_.num_free(), 64);
}

TEST_F(WindowTables, GrowingIsAllOrNothingAndIsUndone) {
  BlockPool small(5);
  BlockTables tables(groups_, kBlock);
  EXPECT_FALSE(tables.Grow(small, 64, 32));
  EXPECT_TRUE(tables.empty());
  EXPECT_EQ(small.num_free(), 5);
  ASSERT_TRUE(tables.Grow(small, 32, 32));
  const BlockTables::Lengths before = tables.lengths();
  EXPECT_FALSE(tables.Grow(small, 33, 33));
  EXPECT_EQ(small.num_free(), 1);
  EXPECT_EQ(tables.lengths().full, 2);
  ASSERT_TRUE(tables.Grow(small, 33, 32));
  tables.ShrinkTo(small, before);
  EXPECT_EQ(tables.lengths().full, 2);
  EXPECT_EQ(small.num_free(), 1);
  tables.Release(small);
}

TEST_F(WindowTables, WhatFallsBehindStaysCachedUntilItIsEvicted) {
  const std::vector<PrefixKey> keys = KeysOf(10);
  BlockTables tables(groups_, kBlock);
  Prefill(tables, keys, 24);
  EXPECT_THAT(Held(tables, 1),
              ElementsAre(false, false, false, false, false, false, false, true, true, true));
  EXPECT_EQ(pool_.num_used(), 13);
  EXPECT_EQ(pool_.num_cached(), 7);
  for (const PrefixKey& key : keys) {
    EXPECT_TRUE(pool_.Find(key, 0));
    EXPECT_TRUE(pool_.Find(key, 1));
    EXPECT_NE(pool_.Find(key, 0), pool_.Find(key, 1)) << "each group has a page of its own";
  }
  // The oldest go first, and they are nobody's; what the sequence holds stays.
  std::vector<int32_t> others;
  ASSERT_TRUE(pool_.Allocate(pool_.num_free() + 2, others));
  EXPECT_FALSE(pool_.Find(keys[0], 1));
  EXPECT_FALSE(pool_.Find(keys[1], 1));
  EXPECT_TRUE(pool_.Find(keys[2], 1));
  tables.Release(pool_);
  pool_.ReleaseLast(static_cast<int32_t>(others.size()), others);
}

TEST_F(WindowTables, APrefixIsSharedAsFarAsItsWindowIsThere) {
  const std::vector<PrefixKey> keys = KeysOf(10);
  BlockTables first(groups_, kBlock);
  Prefill(first, keys, 32);
  first.Release(pool_);
  EXPECT_EQ(pool_.num_cached(), 20);
  const auto prefix = [&](int32_t blocks) {
    const BlockTables asks(groups_, kBlock);
    return asks.FindPrefix(pool_, std::span(keys).first(static_cast<size_t>(blocks))).num_blocks;
  };
  EXPECT_EQ(prefix(10), 10);
  EXPECT_EQ(prefix(4), 4);
  BlockTables second(groups_, kBlock);
  EXPECT_EQ(second.Share(pool_, keys), 10);
  EXPECT_THAT(Held(second, 1),
              ElementsAre(false, false, false, false, false, false, false, true, true, true));
  EXPECT_EQ(pool_.num_used(), 13) << "ten of full layers, three that the next row sees";
  EXPECT_EQ(second.FindPrefix(pool_, keys).num_held, 10);
  EXPECT_EQ(second.FindPrefix(pool_, std::span(keys).first(5)).num_held, 0)
      << "the window behind five blocks is cached, and held by nobody";
  second.Release(pool_);
}

// Every choice of blocks that remain, against the plain rule.
TEST(BlockTables, TheLongestPrefixIsThatOfThePlainRule) {
  std::mt19937 random(3);
  const std::vector<std::vector<int32_t>> kinds = {{0}, {0, 1}, {0, 40}, {0, 0, 16, 64}, {33}};
  for (int round = 0; round < 400; ++round) {
    const LayerGroups groups = GroupsOf(kinds[static_cast<size_t>(round) % kinds.size()]);
    const std::vector<PrefixKey> keys = KeysOf(12);
    BlockPool pool(12 * groups.size());
    std::vector<std::vector<bool>> there(static_cast<size_t>(groups.size()));
    const int32_t loses = static_cast<int32_t>(random() % 8) + 1;
    for (int32_t group = 0; group < groups.size(); ++group) {
      for (const PrefixKey& key : keys) {
        const bool stays = static_cast<int32_t>(random() % 24) >= loses;
        there[static_cast<size_t>(group)].push_back(stays);
        if (stays) pool.Publish(*pool.Allocate(), key, nullptr, {}, group);
      }
    }
    const auto fits = [&](int32_t blocks) {
      for (int32_t group = 0; group < groups.size(); ++group) {
        const int32_t window = groups.windows[static_cast<size_t>(group)];
        for (int32_t i = 0; i < blocks; ++i) {
          const bool seen = window == 0 || (i + 1) * kBlock > blocks * kBlock - window + 1;
          if (seen && !there[static_cast<size_t>(group)][static_cast<size_t>(i)]) return false;
        }
      }
      return true;
    };
    int32_t longest = 12;
    while (!fits(longest)) --longest;
    BlockTables tables(groups, kBlock);
    const BlockPool::Prefix found = tables.FindPrefix(pool, keys);
    ASSERT_EQ(found.num_blocks, longest) << round;
    ASSERT_EQ(found.num_held, longest) << "all are held";
    ASSERT_EQ(tables.Share(pool, keys), longest);
    tables.Release(pool);
  }
}

TEST(BlockTables, APassTakesItsBlocksOnceAndTurnsThemOver) {
  BlockPool pool(64);
  const LayerGroups groups = GroupsOf({0, 40, 40});
  BlockTables tables(groups, kBlock);
  constexpr int32_t kTokens = 320;
  constexpr int32_t kRows = 24;
  const auto most = static_cast<int32_t>(groups.MostPages(kTokens, kRows, kBlock));
  EXPECT_EQ(most, 20 + 2 * 5);
  ASSERT_TRUE(tables.Reserve(pool, most));
  EXPECT_FALSE(tables.empty());
  for (int32_t at = 0; at < kTokens;) {
    const int32_t end = std::min(kTokens, at + kRows);
    ASSERT_TRUE(tables.Grow(pool, kTokens, end));
    EXPECT_EQ(pool.num_used(), most) << at;
    for (size_t group : {1, 2}) {
      const auto first = static_cast<size_t>(FirstBlockSeen(at, 40, kBlock));
      for (size_t i = first; i < tables.tables()[group].size(); ++i) {
        ASSERT_NE(tables.tables()[group][i], kGone);
      }
    }
    at = end;
    tables.KeepBehind(at);
  }
  tables.Release(pool);
  EXPECT_EQ(pool.num_free(), 64);
  EXPECT_FALSE(tables.Reserve(pool, 65));
  EXPECT_TRUE(tables.empty());
}

}  // namespace
}  // namespace eta
