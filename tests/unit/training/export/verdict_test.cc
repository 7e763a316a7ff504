#include "training/export/verdict.h"

#include <limits>

#include "calibration/calibrate/perplexity_increase.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta::training {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr DualAscentOptions kAsked = {.target_union = 0.3, .max_perplexity_increase = 0.01};

// A model whose sparse attention lies by `increase` above an original of perplexity 10.
Verdict JudgeModel(double union_density, double increase, int64_t tokens = kMinVerdictTokens) {
  const HeldOutResult original = {.all = {.full_perplexity = 10.0}};
  const HeldOutResult model = {.all = {.full_perplexity = 9.0,
                                       .sparse_perplexity = 10.0 * (1.0 + increase),
                                       .union_density = union_density},
                               .sparse = true,
                               .tokens = tokens};
  return Judge(kAsked, model, original);
}

// The bound on perplexity is the one that was asked for: while the learning rate was high, steering
// allowed ten times as much.
TEST(Verdict, TakesBothBounds) {
  EXPECT_TRUE(JudgeModel(0.3, 0.0099).kept());
  EXPECT_THAT(VerdictText(JudgeModel(0.3, 0.0099)), HasSubstr("Both bounds are kept."));
  EXPECT_FALSE(JudgeModel(0.2, 0.05).kept());
  EXPECT_THAT(VerdictText(JudgeModel(0.2, 0.05)),
              AllOf(HasSubstr("a block union of 0.3,"), HasSubstr("at most 1 % above"),
                    HasSubstr("1024 tokens: 0.200 and +5.00 %."),
                    HasSubstr("The bound on the perplexity is not kept.")));
  EXPECT_FALSE(JudgeModel(0.31, 0.0).kept());
  EXPECT_THAT(VerdictText(JudgeModel(0.31, 0.0)),
              HasSubstr("The bound on the block union is not kept."));
  EXPECT_THAT(VerdictText(JudgeModel(0.31, 0.05)), HasSubstr("Neither bound is kept."));
}

TEST(Verdict, LetsAUnionSwingAboutItsTarget) {
  EXPECT_TRUE(JudgeModel(0.3029, 0.0).kept());
  EXPECT_FALSE(JudgeModel(0.3031, 0.0).kept());
}

TEST(Verdict, TakesEnoughTokens) {
  const Verdict verdict = JudgeModel(0.1, 0.0, kMinVerdictTokens - 1);
  EXPECT_FALSE(verdict.kept());
  EXPECT_THAT(VerdictText(verdict), HasSubstr("Unverified: a verdict takes 1024 tokens."));
}

TEST(Verdict, WhatIsNotFiniteKeepsNoBound) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(JudgeModel(nan, 0.0).kept());
  EXPECT_FALSE(JudgeModel(0.1, nan).kept());
  EXPECT_FALSE(JudgeModel(0.1, std::numeric_limits<double>::infinity()).kept());
}

}  // namespace
}  // namespace eta::training
