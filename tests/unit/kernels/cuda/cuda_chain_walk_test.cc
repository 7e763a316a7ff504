// How the weights of a chain of products are dealt out. No device is needed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <vector>

#include "kernels/cuda/rows/chain_walk.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {
namespace {

using cuda::product::ChainPart;
using cuda::product::ChainPlace;

TEST(ChainWalk, DealsOutEveryTileOnceAndEvenly) {
  Random random(51);
  for (int round = 0; round < 200; ++round) {
    const auto blocks = static_cast<int32_t>(Uniform(random, 1, 150));
    std::vector<int64_t> of_block(static_cast<size_t>(blocks), 0);
    int32_t first_block = 0;
    for (int i = 0; i < cuda::product::kMostChained; ++i) {
      const auto channels = static_cast<int32_t>(Uniform(random, 1, 9000));
      const bool swiglu = Often(random, 2);
      const ChainPart part = cuda::product::DealOut(channels, 8, swiglu, first_block);
      ASSERT_EQ(part.tiles, (channels + (swiglu ? 7 : 15)) / (swiglu ? 8 : 16));
      std::vector<int> times(static_cast<size_t>(part.tiles), 0);
      for (int32_t block = 0; block < blocks; ++block) {
        for (int32_t tile = part.FirstTile(block, blocks); tile < part.tiles; tile += blocks) {
          ASSERT_GE(tile, 0);
          ++times[static_cast<size_t>(tile)];
          ++of_block[static_cast<size_t>(block)];
        }
      }
      EXPECT_EQ(std::ranges::count(times, 1), part.tiles);
      const auto [least, most] = std::ranges::minmax(of_block);
      EXPECT_LE(most - least, 1) << "product " << i << ", " << blocks << " thread blocks";
      first_block = part.NextBlock(blocks);
    }
  }
}

TEST(ChainWalk, TakesEveryRowOfTheWeight) {
  for (const int32_t channels : {1, 7, 8, 9, 16, 40, 130}) {
    for (const bool swiglu : {false, true}) {
      const int32_t rows = swiglu ? 2 * channels : channels;
      const ChainPart part = cuda::product::DealOut(channels, 8, swiglu, 0);
      std::set<int64_t> taken;
      for (int32_t tile = 0; tile < part.tiles; ++tile) {
        for (int32_t i = 0; i < cuda::product::kStageRows; ++i) {
          const int64_t row = cuda::product::WeightRow(channels, swiglu, tile, i);
          ASSERT_GE(row, 0);
          ASSERT_LT(row, rows);
          EXPECT_EQ(swiglu && i >= 8, row >= channels);
          taken.insert(row);
        }
      }
      EXPECT_EQ(std::ssize(taken), rows);
    }
  }
}

TEST(ChainWalk, StagesCoverKInPiecesOfSixteenBytes) {
  for (int32_t k = 8; k < 5000; k += 8) {
    const ChainPart part = cuda::product::DealOut(16, k, false, 0);
    int32_t sum = 0;
    for (int32_t stage = 0; stage < part.stages; ++stage) {
      const int32_t numbers = cuda::product::StageNumbers(k, stage);
      ASSERT_GT(numbers, 0);
      ASSERT_LE(numbers, cuda::product::kStageWidth);
      ASSERT_EQ(numbers * 2 % 16, 0);
      sum += numbers;
    }
    ASSERT_EQ(sum, k);
  }
}

TEST(ChainWalk, PhasesTurnWithEveryRoundOfTheRing) {
  for (int32_t stages = cuda::product::kLeastStages; stages <= cuda::product::kMostStages;
       ++stages) {
    ChainPlace place;
    for (int32_t i = 0; i < 100; ++i, place.Advance(stages)) {
      ASSERT_EQ(place.stage, i % stages);
      ASSERT_EQ(place.phase, static_cast<uint32_t>(i / stages % 2));
    }
  }
}

}  // namespace
}  // namespace eta::testing
