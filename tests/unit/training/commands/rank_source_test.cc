// The micro-batches of a rank: which sequences, which targets, which weights.
#include "training/commands/rank_source.h"

#include <numeric>
#include <set>

#include "gmock/gmock.h"
#include "tests/testing/training/text_case.h"

namespace eta::training {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class RankSourceTest : public TextCase {};

TEST_F(RankSourceTest, RanksShareAStepWithoutOverlap) {
  const auto data = Open({.sequence_tokens = 50}).value();
  std::multiset<std::vector<int32_t>> seen;
  std::multiset<std::vector<int32_t>> expected;
  for (uint64_t rank = 0; rank < 3; ++rank) {
    auto batches = ReadMicroBatches(*data, LossKind::kText, 12 + rank * 4, 2, 2).value();
    RankSource source;
    source.Give(std::move(batches));
    MicroBatch batch;
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(source.Next(batch).ok());
      EXPECT_EQ(batch.sequences, 2);
      EXPECT_EQ(batch.length, 50);
      EXPECT_THAT(batch.ce_weights, IsEmpty());
      ASSERT_THAT(batch.targets, SizeIs(100));
      for (size_t row = 0; row < 2; ++row) {
        const auto begin = batch.tokens.begin() + static_cast<std::ptrdiff_t>(row * 50);
        std::vector<int32_t> tokens(begin, begin + 50);
        EXPECT_EQ(batch.targets[row * 50 + 7], tokens[8]);
        tokens.push_back(batch.targets[row * 50 + 49]);
        seen.insert(tokens);
      }
    }
    EXPECT_TRUE(absl::IsOutOfRange(source.Next(batch)));
  }
  const auto all = data->Read(12, 12);
  for (size_t row = 0; row < 12; ++row) {
    const auto begin = all->tokens.begin() + static_cast<std::ptrdiff_t>(row * 51);
    expected.emplace(begin, begin + 51);
  }
  EXPECT_EQ(seen, expected);
}

TEST_F(RankSourceTest, OnlyAnswersCountAndEachTaskAsMuch) {
  const auto data = Open({.sequence_tokens = 600, .retrieval_share = 0.5}).value();
  const auto batches = ReadMicroBatches(*data, LossKind::kAnswers, 0, 1, 8).value();
  const MicroBatch& batch = batches.front();
  int tasks = 0;
  for (size_t row = 0; row < 8; ++row) {
    const auto weights = std::span(batch.ce_weights).subspan(row * 600, 600);
    const auto targets = std::span(batch.targets).subspan(row * 600, 600);
    const float sum = std::accumulate(weights.begin(), weights.end(), 0.0f);
    if (sum > 0.0f) {
      ++tasks;
      EXPECT_NEAR(sum, 600.0f, 0.1f);
    }
    for (size_t i = 0; i < 600; ++i) EXPECT_EQ(targets[i] >= 0, weights[i] > 0.0f) << i;
  }
  EXPECT_EQ(tasks, 4);
}

}  // namespace
}  // namespace eta::training
