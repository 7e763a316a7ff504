#include "training/optimizer/schedules.h"

#include "gtest/gtest.h"

namespace eta::training {
namespace {

TEST(CosineRate, WarmsUpAndFallsToItsFloor) {
  const CosineRate rate{.peak = 4e-4, .floor = 4e-5, .warm_up = 300, .steps = 10000};
  EXPECT_DOUBLE_EQ(rate.At(0), 4e-4 / 300);
  EXPECT_DOUBLE_EQ(rate.At(299), 4e-4);
  EXPECT_DOUBLE_EQ(rate.At(300), 4e-4);
  EXPECT_NEAR(rate.At(5150), 2.2e-4, 1e-12);
  EXPECT_DOUBLE_EQ(rate.At(10000), 4e-5);
  EXPECT_DOUBLE_EQ(rate.At(20000), 4e-5);
}

TEST(CosineRate, NeedsNoWarmUp) {
  const CosineRate rate{.peak = 1.0, .floor = 0.0, .warm_up = 0, .steps = 10};
  EXPECT_DOUBLE_EQ(rate.At(0), 1.0);
  EXPECT_NEAR(rate.At(5), 0.5, 1e-12);
}

TEST(LinearRamp, GoesFromFirstToLast) {
  const LinearRamp beta{.first = 1.0, .last = 5.0, .steps = 7000};
  EXPECT_DOUBLE_EQ(beta.At(0), 1.0);
  EXPECT_DOUBLE_EQ(beta.At(3500), 3.0);
  EXPECT_DOUBLE_EQ(beta.At(7000), 5.0);
  EXPECT_DOUBLE_EQ(beta.At(9999), 5.0);
  EXPECT_DOUBLE_EQ((LinearRamp{.first = 0.0, .last = 1.0, .steps = 0}.At(0)), 1.0);
}

TEST(SparsityWeight, IsThePapers) {
  const SparsityWeight weight;  // the paper's numbers
  EXPECT_EQ(weight.At(749), 0.0);
  EXPECT_EQ(weight.At(750), 0.0);
  EXPECT_DOUBLE_EQ(weight.At(750 + 845), 2.5e-4);
  EXPECT_DOUBLE_EQ(weight.At(750 + 1690), 2.5e-5);
  EXPECT_DOUBLE_EQ(weight.At(9999), 2.5e-5);
}

TEST(SparsityWeight, HoldsAndDecays) {
  const SparsityWeight weight{
      .peak = 1.0, .delay = 10, .ramp = 10, .hold = 10, .decay = 10, .final_share = 0.5};
  EXPECT_DOUBLE_EQ(weight.At(15), 0.5);
  EXPECT_DOUBLE_EQ(weight.At(20), 1.0);
  EXPECT_DOUBLE_EQ(weight.At(29), 1.0);
  EXPECT_DOUBLE_EQ(weight.At(35), 0.75);
  EXPECT_DOUBLE_EQ(weight.At(40), 0.5);
}

}  // namespace
}  // namespace eta::training
