#include "engine/model/rope_base.h"

#include <gtest/gtest.h>

#include <cmath>

namespace eta {
namespace {

ModelConfig TrainedFor(int32_t context) {
  ModelConfig config;
  config.head_dim = 64;
  config.rope_theta = 5e5f;
  config.max_context = context;
  return config;
}

TEST(RopeBase, WithinTheTrainedLengthItIsTheCheckpointsOwn) {
  const ModelConfig config = TrainedFor(16384);
  for (const int64_t context : {1, 356, 16383, 16384}) {
    EXPECT_EQ(RopeFactor(config, context), 1.0f) << context;
    EXPECT_EQ(RopeTheta(config, context), config.rope_theta) << context;
  }
}

TEST(RopeBase, TheFactorIsRoundedUpToTheNextStep) {
  const float steps[] = {1, 1.25, 1.5, 2, 2.5, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
  for (const int32_t trained : {16384, 3000, 4}) {
    const ModelConfig config = TrainedFor(trained);
    for (size_t i = 1; i < std::size(steps); ++i) {
      const auto last = static_cast<int64_t>(steps[i] * static_cast<float>(trained));
      const auto first = static_cast<int64_t>(steps[i - 1] * static_cast<float>(trained)) + 1;
      EXPECT_EQ(RopeFactor(config, first), steps[i]) << trained;
      EXPECT_EQ(RopeFactor(config, last), steps[i]) << trained;
    }
  }
}

TEST(RopeBase, LongestContextsOfTheShortestModelsHaveAStepToo) {
  EXPECT_EQ(RopeFactor(TrainedFor(1), int64_t{1} << 32), 0x1p32f);
  EXPECT_EQ(RopeFactor(TrainedFor(1), (int64_t{1} << 31) + 1), 1.5f * 0x1p31f);
}

// Three questions on a text of 18,250 tokens.
TEST(RopeBase, AllTokensOfAStepHaveOneBase) {
  const ModelConfig config = TrainedFor(16384);
  const float base = RopeTheta(config, 18250 + 256);
  EXPECT_FLOAT_EQ(base, static_cast<float>(5e5 * std::pow(1.25, 64.0 / 62.0)));
  EXPECT_EQ(RopeTheta(config, 18290 + 17), base);
  EXPECT_EQ(RopeTheta(config, 16384 + 1), base);
  EXPECT_EQ(RopeTheta(config, 20480), base);
  EXPECT_GT(RopeTheta(config, 20481), base);
}

}  // namespace
}  // namespace eta
