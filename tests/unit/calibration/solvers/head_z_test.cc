// The smallest z of a wanted recall, against selection tried at every z.

#include "calibration/solvers/head_z.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "engine/base/error.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;

struct CountedBlock {
  BlockBound bound;
  float threshold;
  int64_t keys;
};

// Blocks of random keys as random queries see them: bound, threshold and keys above it.
std::vector<CountedBlock> RandomBlocks(uint64_t seed, size_t count) {
  constexpr size_t kDim = 16;
  constexpr size_t kKeys = 8;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<CountedBlock> blocks;
  while (blocks.size() < count) {
    std::array<float, kDim> q, mean = {}, square = {};
    std::array<std::array<float, kDim>, kKeys> keys;
    for (float& x : q) x = normal(random);
    const float spread = std::exp(normal(random));
    float longest = 0.0f;
    for (auto& key : keys) {
      float length = 0.0f;
      for (size_t i = 0; i < kDim; ++i) {
        key[i] = 0.25f + spread * normal(random);
        mean[i] += key[i] / kKeys;
        length += key[i] * key[i];
      }
      longest = std::max(longest, std::sqrt(length));
    }
    float projected = 0.0f, variance = 0.0f, norm = 0.0f;
    for (size_t i = 0; i < kDim; ++i) {
      for (const auto& key : keys) square[i] += (key[i] - mean[i]) * (key[i] - mean[i]) / kKeys;
      projected += q[i] * mean[i];
      variance += q[i] * q[i] * square[i];
      norm += q[i] * q[i];
    }
    CountedBlock block = {.bound = {.mean = projected,
                                    .deviation = std::sqrt(variance),
                                    .ceiling = std::sqrt(norm) * longest,
                                    .scale = 0.25f},
                          .threshold = 3.0f + normal(random),
                          .keys = 0};
    for (const auto& key : keys) {
      float score = 0.0f;
      for (size_t i = 0; i < kDim; ++i) score += q[i] * key[i];
      block.keys += 0.25f * score >= block.threshold ? 1 : 0;
    }
    blocks.push_back(block);
  }
  return blocks;
}

double RecallAt(const std::vector<CountedBlock>& blocks, int64_t unconditional, float z) {
  int64_t admitted = unconditional;
  int64_t all = unconditional;
  for (const CountedBlock& block : blocks) {
    all += block.keys;
    admitted += block.bound.At(z) >= block.threshold ? block.keys : 0;
  }
  return static_cast<double>(admitted) / static_cast<double>(all);
}

HeadZStatistics Collect(const std::vector<CountedBlock>& blocks, int64_t unconditional) {
  HeadZStatistics statistics = *HeadZStatistics::Create(1, 1);
  statistics.AddUnconditional(0, 0, unconditional);
  for (const CountedBlock& block : blocks) {
    statistics.AddBlock(0, 0, block.bound, block.threshold, block.keys);
  }
  return statistics;
}

TEST(HeadZ, IsTheSmallestThatMeetsTheRecall) {
  for (const uint64_t seed : {1, 2, 3}) {
    const std::vector<CountedBlock> blocks = RandomBlocks(seed, 3000);
    const HeadZStatistics statistics = Collect(blocks, 500);
    for (const double recall : {0.8, 0.9, 0.95, 0.99}) {
      const auto solved = SmallestZ(statistics.head(0, 0), recall).value();
      EXPECT_EQ(solved.recall, RecallAt(blocks, 500, solved.z));
      EXPECT_GE(solved.recall, recall);
      ASSERT_GT(solved.z, 0.0f);
      EXPECT_LT(RecallAt(blocks, 500, solved.z - 1.0f / kZStepsPerUnit), recall);
    }
  }
}

// Rounding goes up, and to the next bin only: by the float32 comparison itself.
TEST(HeadZ, NeededBinAdmitsAndTheOneBeforeDoesNot) {
  int inside = 0;
  for (const CountedBlock& block : RandomBlocks(4, 20000)) {
    const int32_t bin = NeededZBin(block.bound, block.threshold);
    if (bin == kZUnreachable) {
      EXPECT_LT(block.bound.scale * block.bound.ceiling, block.threshold);
      EXPECT_EQ(block.keys, 0);
    } else if (bin == kZBeyond) {
      EXPECT_LT(block.bound.At(kMaxHeadZ), block.threshold);
    } else {
      EXPECT_GE(block.bound.At(ZOfBin(bin)), block.threshold);
      if (bin == 0) continue;
      EXPECT_LT(block.bound.At(ZOfBin(bin - 1)), block.threshold);
      ++inside;
    }
  }
  EXPECT_GT(inside, 1000);
}

TEST(HeadZ, TheBoundEndsAtTheNormCeiling) {
  const BlockBound bound = {.mean = 1.0f, .deviation = 2.0f, .ceiling = 4.0f, .scale = 0.5f};
  EXPECT_EQ(bound.At(0.0f), 0.5f);
  EXPECT_EQ(bound.At(1.0f), 1.5f);
  EXPECT_EQ(bound.At(1.5f), 2.0f);
  EXPECT_EQ(bound.At(9.0f), 2.0f);
}

TEST(HeadZ, BinEdges) {
  const BlockBound bound = {.mean = 1.0f, .deviation = 0.5f, .ceiling = 100.0f, .scale = 1.0f};
  EXPECT_EQ(NeededZBin(bound, 0.5f), 0);
  EXPECT_EQ(NeededZBin(bound, 1.0f), 0);
  EXPECT_EQ(NeededZBin(bound, 1.5f), kZStepsPerUnit);
  EXPECT_EQ(NeededZBin(bound, std::nextafter(1.5f, 2.0f)), kZStepsPerUnit + 1);
  EXPECT_EQ(NeededZBin(bound, std::nextafter(1.0f, 2.0f)), 1);
  EXPECT_EQ(NeededZBin(bound, 9.0f), kZBins - 1);
  EXPECT_EQ(NeededZBin(bound, 9.001f), kZBeyond);
  EXPECT_EQ(NeededZBin(bound, 100.001f), kZUnreachable);
  EXPECT_EQ(NeededZBin({.mean = 1.0f, .deviation = 0.0f, .ceiling = 9.0f, .scale = 1.0f}, 2.0f),
            kZBeyond);
  EXPECT_EQ(NeededZBin({.mean = 1.0f, .deviation = 9.0f, .ceiling = 2.0f, .scale = 1.0f}, 2.0f),
            29);  // 1/9 of a deviation, in steps of 1/256
  EXPECT_EQ(NeededZBin(bound, -std::numeric_limits<float>::infinity()), 0);
  EXPECT_EQ(
      NeededZBin({.mean = std::nanf(""), .deviation = 0.0f, .ceiling = 9.0f, .scale = 1.0f}, 2.0f),
      kZBeyond);
}

TEST(HeadZ, KeysThatNoZAdmitsStandInTheRecall) {
  const BlockBound low = {.mean = 0.0f, .deviation = 1.0f, .ceiling = 0.5f, .scale = 1.0f};
  const BlockBound flat = {.mean = 0.0f, .deviation = 0.0f, .ceiling = 9.0f, .scale = 1.0f};
  const BlockBound wide = {.mean = 0.0f, .deviation = 1.0f, .ceiling = 9.0f, .scale = 1.0f};
  HeadZStatistics statistics = *HeadZStatistics::Create(2, 2);
  statistics.AddBlock(1, 0, low, 1.0f, 3);
  statistics.AddBlock(1, 0, flat, 1.0f, 7);
  statistics.AddBlock(1, 0, wide, 1.0f, 40);
  statistics.AddBlock(1, 0, wide, 2.0f, 0);
  statistics.AddUnconditional(1, 0, 50);
  const HeadKeys& keys = statistics.head(1, 0);
  EXPECT_EQ(keys.unreachable, 3);
  EXPECT_EQ(keys.beyond, 7);
  EXPECT_EQ(keys.total(), 100);
  EXPECT_EQ(SmallestZ(keys, 0.5)->z, 0.0f);
  EXPECT_EQ(SmallestZ(keys, 0.9)->z, 1.0f);
  EXPECT_EQ(SmallestZ(keys, 0.9)->recall, 0.9);
  const absl::Status status = SolveHeadZ(statistics, 0.95).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(detail.reason, "TARGET_UNREACHABLE");
  EXPECT_EQ(detail.field, "z_recall");
  EXPECT_EQ(detail.metadata.at("nearest"), "0.9");
  EXPECT_EQ(detail.metadata.at("layer"), "1");
  EXPECT_EQ(detail.metadata.at("head"), "0");
  EXPECT_EQ(detail.metadata.at("beyond"), "7");
  EXPECT_EQ(detail.metadata.at("unreachable"), "3");
}

TEST(HeadZ, HeadsAreSolvedApartAndPooledTogether) {
  const BlockBound bound = {.mean = 0.0f, .deviation = 1.0f, .ceiling = 99.0f, .scale = 1.0f};
  HeadZStatistics statistics = *HeadZStatistics::Create(1, 3);
  statistics.AddBlock(0, 0, bound, 0.5f, 300);
  statistics.AddBlock(0, 1, bound, 3.0f, 100);
  const auto solved = SolveHeadZ(statistics, 0.95).value();
  EXPECT_EQ(solved[0].z, 0.5f);
  EXPECT_EQ(solved[1].z, 3.0f);
  EXPECT_EQ(solved[2].z, 0.0f);
  EXPECT_EQ(solved[2].keys, 0);
  EXPECT_EQ(SmallestZ(statistics.Pooled(), 0.95)->z, 3.0f);
  EXPECT_EQ(SmallestZ(statistics.Pooled(), 0.75)->z, 0.5f);
}

TEST(HeadZ, OrdersAndMergesGiveTheSame) {
  std::vector<CountedBlock> blocks = RandomBlocks(5, 2000);
  const HeadZStatistics whole = Collect(blocks, 9);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937_64(1));
  const auto half = blocks.begin() + 700;
  HeadZStatistics merged = Collect({blocks.begin(), half}, 4);
  ASSERT_TRUE(merged.Merge(Collect({half, blocks.end()}, 5)).ok());
  EXPECT_EQ(merged.head(0, 0), whole.head(0, 0));
  HeadZStatistics added = *HeadZStatistics::Create(1, 1);
  ASSERT_TRUE(added.Add(0, 0, whole.head(0, 0)).ok());
  EXPECT_EQ(added.head(0, 0), whole.head(0, 0));
}

TEST(HeadZ, RefusesBadInput) {
  EXPECT_FALSE(HeadZStatistics::Create(0, 1).ok());
  EXPECT_FALSE(HeadZStatistics::Create(1, 0).ok());
  EXPECT_FALSE(HeadZStatistics::Create(16384, 2).ok());
  HeadZStatistics statistics = *HeadZStatistics::Create(1, 2);
  HeadKeys keys;
  EXPECT_THAT(statistics.Add(0, 2, keys).message(), HasSubstr("head 2"));
  keys.needed[7] = -1;
  EXPECT_THAT(statistics.Add(0, 1, keys).message(), HasSubstr("keys[0][1]"));
  EXPECT_FALSE(statistics.Merge(*HeadZStatistics::Create(2, 1)).ok());
  for (const double recall : {0.0, -1.0, 1.5, std::nan("")}) {
    EXPECT_THAT(SmallestZ(statistics.head(0, 0), recall).status().message(), HasSubstr("z_recall"));
    EXPECT_FALSE(SolveHeadZ(statistics, recall).ok());
  }
}

}  // namespace
}  // namespace eta::testing
