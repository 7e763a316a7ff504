#include "kernels/weights/activation_groups.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/testing/kernels/kernel_harness.h"

namespace eta {
namespace {

TEST(QuantizeActivations, AGroupByHand) {
  std::vector<float> x(32, 0.0f);
  x[0] = 63.5f;  // so the scale is a half
  x[1] = -63.5f;
  x[2] = 0.25f;  // half a step: to even
  x[3] = 0.75f;  // one and a half: to even
  x[31] = -1.3f;
  const ActivationGroup group = QuantizeActivations(x);
  EXPECT_EQ(group.scale, 0.5f);
  EXPECT_EQ(group.x[0], 127);
  EXPECT_EQ(group.x[1], -127);
  EXPECT_EQ(group.x[2], 0);
  EXPECT_EQ(group.x[3], 2);
  EXPECT_EQ(group.x[31], -3);
  EXPECT_EQ(group.sum[0], 2);
  EXPECT_EQ(group.sum[1], -3);
  EXPECT_EQ(group.scaled_sum, -0.5f);
}

TEST(QuantizeActivations, AreWithinHalfAStep) {
  testing::Random random(3);
  for (const float deviation : {1e-25f, 1.0f, 1e25f}) {
    for (int64_t count = 1; count <= 32; ++count) {
      const auto x = testing::Normal(random, 1, count, deviation);
      const ActivationGroup group = QuantizeActivations(x.data);
      for (size_t i = 0; i < x.data.size(); ++i) {
        EXPECT_LE(std::abs(static_cast<double>(x.data[i]) - double{group.scale} * group.x[i]),
                  0.5001 * group.scale);
      }
      for (size_t i = x.data.size(); i < 32; ++i) EXPECT_EQ(group.x[i], 0);
      EXPECT_EQ(std::accumulate(group.x.begin(), group.x.end(), 0), group.sum[0] + group.sum[1]);
      EXPECT_EQ(group.scaled_sum, group.scale * static_cast<float>(group.sum[0] + group.sum[1]));
    }
  }
}

TEST(QuantizeActivations, TheSmallestCountAsZeros) {
  for (const float x : {0.0f, -0.0f, 1e-40f, -0x1p-100f * 126.0f}) {
    const ActivationGroup group = QuantizeActivations(std::vector<float>(32, x));
    EXPECT_EQ(group.scale, 0.0f);
    EXPECT_EQ(group.scaled_sum, 0.0f);
    EXPECT_EQ(group.x[0], 0);
  }
  EXPECT_EQ(QuantizeActivations(std::vector<float>(32, 0x1p-100f * 127.0f)).x[31], 127);
  EXPECT_EQ(QuantizeActivations(std::vector{std::numeric_limits<float>::max()}).x[0], 127);
}

TEST(QuantizeActivations, WhatIsNotFiniteMakesTheGroupNan) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> x(32, 1.0f);
    x[17] = bad;
    const ActivationGroup group = QuantizeActivations(x);
    EXPECT_TRUE(std::isnan(group.scale));
    EXPECT_TRUE(std::isnan(group.scaled_sum));
    for (const int8_t value : group.x) EXPECT_EQ(value, 0);
  }
}

}  // namespace
}  // namespace eta
