#include "engine/tokenizer/merge_queue.h"

#include <random>
#include <set>
#include <utility>

#include "gtest/gtest.h"

namespace eta {
namespace {

// Also with pairs that come after it was their turn, as models give them whose scores do not fall.
TEST(MergeQueue, TakesWhatASortedSetWould) {
  std::mt19937 random(7);
  const auto draw = [&random](uint32_t below) { return static_cast<uint32_t>(random() % below); };
  for (int round = 0; round < 200; ++round) {
    MergeQueue queue;
    std::multiset<std::pair<uint32_t, int32_t>> expected;
    const auto push = [&] {
      const uint32_t rank = 1 + draw(8);
      const auto left = static_cast<int32_t>(draw(50));
      queue.Push(rank, left);
      expected.emplace(rank, left);
    };
    for (uint32_t count = draw(60); count > 0; --count) push();
    while (!expected.empty()) {
      const auto taken = queue.Pop();
      ASSERT_TRUE(taken);
      ASSERT_EQ(std::make_pair(taken->rank, taken->left), *expected.begin());
      expected.erase(expected.begin());
      if (draw(3) == 0) push();
    }
    EXPECT_FALSE(queue.Pop());
  }
}

}  // namespace
}  // namespace eta
