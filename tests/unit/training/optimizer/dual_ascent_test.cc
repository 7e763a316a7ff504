#include "training/optimizer/dual_ascent.h"

#include <cmath>
#include <limits>
#include <utility>

#include "gtest/gtest.h"

namespace eta::training {
namespace {

const DualAscentOptions kOptions = {
    .target_union = 0.25, .max_perplexity_increase = 0.01, .initial_weight = 0.01};

// A model whose union density falls and whose perplexity rises with the weight.
DensityReading Respond(double weight, double cost) {
  const double density = 1.0 / (1.0 + 10.0 * weight);
  return {density, cost * weight};
}

TEST(DualAscent, ReachesTheTarget) {
  DualAscent ascent(kOptions);
  for (int i = 0; i < 60; ++i) ascent.Update(Respond(ascent.weight(), 0.001), 0.0);
  EXPECT_NEAR(ascent.state().last.union_density, 0.25, 0.003);
  EXPECT_EQ(ascent.state().readings, 60);
}

TEST(DualAscent, StopsAtTheBoundOnQuality) {
  DualAscent ascent(kOptions);
  for (int i = 0; i < 60; ++i) ascent.Update(Respond(ascent.weight(), 0.1), 0.0);
  // The bound is at a weight of 0.1; the target would be at 0.3.
  EXPECT_LT(ascent.weight(), 0.2);
  EXPECT_GT(ascent.weight(), 0.05);
  EXPECT_GT(ascent.state().last.union_density, 0.25);
}

TEST(DualAscent, KeepsTheWeightInsideItsLimits) {
  DualAscent up(kOptions);
  for (int i = 0; i < 100; ++i) up.Update({1.0, 0.0}, 0.0);
  EXPECT_EQ(up.weight(), kOptions.max_weight);
  DualAscent down(kOptions);
  for (int i = 0; i < 100; ++i) down.Update({0.0, 0.0}, 0.0);
  EXPECT_EQ(down.weight(), kOptions.min_weight);
}

TEST(DualAscent, BoundsQualityLooselyWhileTheLearningRateIsHigh) {
  for (const auto& [rate_share, bound] :
       {std::pair(1.0, 0.1), std::pair(0.5, 0.055), std::pair(0.0, 0.01)}) {
    DualAscent inside(kOptions);
    inside.Update({0.5, bound * 0.99}, rate_share);
    EXPECT_GT(inside.weight(), kOptions.initial_weight) << rate_share;
    DualAscent over(kOptions);
    over.Update({0.5, bound * 1.01}, rate_share);
    EXPECT_LT(over.weight(), kOptions.initial_weight) << rate_share;
  }
}

TEST(DualAscent, WhatIsNotFiniteIsTooDear) {
  DualAscent ascent(kOptions);
  ascent.Update({std::numeric_limits<double>::quiet_NaN(), 0.0}, 1.0);
  EXPECT_NEAR(ascent.weight(), 0.01 * std::exp(-kOptions.max_move), 1e-9);
}

TEST(DualAscent, GoesOnFromItsState) {
  DualAscent whole(kOptions);
  DualAscent first(kOptions);
  for (int i = 0; i < 5; ++i) {
    whole.Update(Respond(whole.weight(), 0.01), 0.0);
    first.Update(Respond(first.weight(), 0.01), 0.0);
  }
  DualAscent resumed(kOptions, first.state());
  for (int i = 0; i < 5; ++i) {
    whole.Update(Respond(whole.weight(), 0.01), 0.0);
    resumed.Update(Respond(resumed.weight(), 0.01), 0.0);
  }
  EXPECT_EQ(resumed.weight(), whole.weight());
  EXPECT_EQ(resumed.state().readings, 10);
}

}  // namespace
}  // namespace eta::training
