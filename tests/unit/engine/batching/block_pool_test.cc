#include "engine/batching/blocks/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace eta {
namespace {

PrefixKey Key(uint8_t name) {
  PrefixKey key;
  key.digest.fill(name);
  return key;
}

// Of the prompt with these keys: how many of its blocks are there, and how many of them are held.
std::pair<int32_t, int32_t> Prefix(const BlockPool& pool, const std::vector<uint8_t>& names) {
  std::vector<PrefixKey> keys;
  for (const uint8_t name : names) keys.push_back(Key(name));
  const BlockPool::Prefix prefix = pool.FindPrefix(keys);
  return {prefix.num_blocks, prefix.num_held};
}

TEST(BlockPool, GivesEveryBlockOnceAndThenNone) {
  BlockPool pool(3);
  std::vector<int32_t> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(*pool.Allocate());
  std::sort(blocks.begin(), blocks.end());
  EXPECT_EQ(blocks, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_FALSE(pool.Allocate());
  pool.Release(1);
  EXPECT_EQ(pool.Allocate(), 1);
}

TEST(BlockPool, APublishedBlockIsSharedAndOutlivesItsOwner) {
  BlockPool pool(2);
  const int32_t block = *pool.Allocate();
  pool.Publish(block, Key(1));
  EXPECT_EQ(Prefix(pool, {1}), std::pair(1, 1));
  EXPECT_EQ(pool.Acquire(Key(1)), block);
  pool.Release(block);
  EXPECT_EQ(pool.num_used(), 1);
  pool.Release(block);
  EXPECT_EQ(pool.num_used(), 0);
  EXPECT_EQ(pool.num_cached(), 1);
  EXPECT_EQ(Prefix(pool, {1}), std::pair(1, 0));
  EXPECT_EQ(pool.Acquire(Key(1)), block);
  EXPECT_EQ(pool.num_cached(), 0);
}

TEST(BlockPool, CachedBlocksAreGivenAwayLeastRecentlyReleasedFirst) {
  BlockPool pool(2);
  const int32_t first = *pool.Allocate();
  const int32_t second = *pool.Allocate();
  pool.Publish(first, Key(1));
  pool.Publish(second, Key(2));
  pool.Release(second);
  pool.Release(first);
  EXPECT_EQ(pool.Allocate(), second);
  EXPECT_EQ(Prefix(pool, {2}), std::pair(0, 0));
  EXPECT_EQ(Prefix(pool, {1}), std::pair(1, 0));
}

TEST(BlockPool, APrefixIsHeldUpToTheFirstBlockThatMayBeGivenAway) {
  BlockPool pool(4);
  std::vector<int32_t> blocks;
  for (uint8_t name = 1; name <= 4; ++name) {
    blocks.push_back(*pool.Allocate());
    pool.Publish(blocks.back(), Key(name));
  }
  EXPECT_EQ(Prefix(pool, {1, 2, 3, 4}), std::pair(4, 4));
  EXPECT_EQ(Prefix(pool, {1, 2, 9, 4}), std::pair(2, 2));
  EXPECT_EQ(Prefix(pool, {}), std::pair(0, 0));
  pool.Release(blocks[2]);
  EXPECT_EQ(Prefix(pool, {1, 2, 3, 4}), std::pair(4, 2));
  pool.Release(blocks[0]);
  EXPECT_EQ(Prefix(pool, {1, 2, 3, 4}), std::pair(4, 0));
  EXPECT_EQ(pool.Allocate(), blocks[2]);
  EXPECT_EQ(Prefix(pool, {1, 2, 3, 4}), std::pair(2, 0));
}

TEST(BlockPool, TheFirstToPublishAKeyKeepsIt) {
  BlockPool pool(2);
  const int32_t first = *pool.Allocate();
  const int32_t second = *pool.Allocate();
  pool.Publish(first, Key(1));
  pool.Publish(second, Key(1));
  pool.Release(second);
  EXPECT_EQ(pool.num_free(), 1) << "the second copy has no name and is free at once";
  EXPECT_EQ(pool.Acquire(Key(1)), first);
}

TEST(BlockPool, WhatIsForgottenIsFoundNoMoreAndStaysWhoseItIs) {
  BlockPool pool(3);
  const int32_t used = *pool.Allocate();
  const int32_t cached = *pool.Allocate();
  pool.Publish(used, Key(1));
  pool.Publish(cached, Key(2));
  pool.Release(cached);
  ASSERT_EQ(pool.num_cached(), 1);
  pool.Forget();
  EXPECT_EQ(pool.num_cached(), 0);
  EXPECT_EQ(pool.num_used(), 1);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_FALSE(pool.Acquire(Key(1)).has_value());
  EXPECT_FALSE(pool.Acquire(Key(2)).has_value());
  pool.Publish(used, Key(1));
  EXPECT_EQ(pool.Acquire(Key(1)), used) << "it may be named again";
  pool.Release(used);
  pool.Release(used);
  EXPECT_EQ(pool.num_cached(), 1);
}

// Random use against a model of it: every block is somewhere, once.
TEST(BlockPool, CountsAddUpThroughRandomUse) {
  BlockPool pool(17);
  std::mt19937 random(3);
  std::vector<int32_t> held;
  for (int step = 0; step < 20'000; ++step) {
    if (step % 1000 == 999) pool.Forget();
    const auto choice = random() % 4;
    if (choice == 0) {
      if (const auto block = pool.Allocate()) {
        EXPECT_EQ(std::count(held.begin(), held.end(), *block), 0);
        held.push_back(*block);
      } else {
        EXPECT_EQ(pool.num_available(), 0);
      }
    } else if (choice == 1 && !held.empty()) {
      const size_t i = random() % held.size();
      pool.Release(held[i]);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (choice == 2 && !held.empty()) {
      pool.Publish(held[random() % held.size()], Key(static_cast<uint8_t>(random() % 12)));
    } else if (const auto block = pool.Acquire(Key(static_cast<uint8_t>(random() % 12)))) {
      held.push_back(*block);
    }
    std::vector<int32_t> distinct = held;
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    ASSERT_EQ(pool.num_used(), static_cast<int32_t>(distinct.size()));
    ASSERT_EQ(pool.num_used() + pool.num_free() + pool.num_cached(), pool.num_blocks());
  }
}

}  // namespace
}  // namespace eta
