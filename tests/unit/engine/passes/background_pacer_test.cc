#include "engine/passes/background_pacer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace eta {
namespace {

constexpr int32_t kMaxRows = 2048;

TEST(StepCost, FindsTheLineThatStepsLieOn) {
  StepCost cost;
  for (const double rows : {1.0, 16.0, 64.0, 256.0}) cost.Measure(rows, 0.002 + 0.0001 * rows);
  EXPECT_NEAR(cost.Of(0), 0.002, 1e-9);
  EXPECT_NEAR(cost.Of(100), 0.012, 1e-9);
  EXPECT_NEAR(cost.RowsWithin(0.022), 200.0, 1e-6);
  EXPECT_EQ(cost.RowsWithin(0.001), 0.0) << "not even an empty step";
}

TEST(StepCost, StepsOfOneSizeSayNothingOfOthersButAHintDoes) {
  StepCost cost;
  for (int i = 0; i < 10; ++i) cost.Measure(256, 0.1);
  EXPECT_NEAR(cost.Of(256), 0.1, 1e-9);
  EXPECT_NEAR(cost.Of(4), 0.1, 1e-9);
  EXPECT_NEAR(cost.With(1, 0.005).Of(256), 0.1, 1e-6);
  EXPECT_NEAR(cost.With(1, 0.005).Of(4), 0.006, 1e-3);
}

TEST(StepCost, OldStepsFade) {
  StepCost cost;
  for (int i = 0; i < 50; ++i) cost.Measure(i % 2 == 0 ? 10 : 100, 1.0);
  for (int i = 0; i < 100; ++i) cost.Measure(i % 2 == 0 ? 10 : 100, 0.01);
  EXPECT_NEAR(cost.Of(50), 0.01, 1e-4);
}

TEST(BackgroundPacer, AtMostEveryFourthStepIsABackgroundStep) {
  BackgroundPacer pacer;
  for (int i = 0; i < 600; ++i) {
    pacer.MeasureForeground(0.010);
    if (pacer.Allowance(kMaxRows) > 0) pacer.MeasureBackground(4, 0.0005, true);
  }
  pacer.MeasureBackground(4, 0.0005, true);
  std::vector<int32_t> allowances;
  for (int i = 0; i < 3; ++i) {
    allowances.push_back(pacer.Allowance(kMaxRows));
    pacer.MeasureForeground(0.010);
  }
  EXPECT_EQ(allowances, std::vector<int32_t>(3, 0));
  EXPECT_GT(pacer.Allowance(kMaxRows), 0);
}

TEST(BackgroundPacer, WithoutRequestsNothingIsOwed) {
  BackgroundPacer pacer;
  for (int i = 0; i < 300; ++i) pacer.MeasureForeground(0.010);
  const int32_t before = pacer.Allowance(kMaxRows);
  EXPECT_GT(before, 0);
  for (int i = 0; i < 100; ++i) pacer.MeasureBackground(i % 2 == 0 ? 256 : 100, 0.05, false);
  EXPECT_GT(pacer.Allowance(kMaxRows), 0) << "an hour of background work delays none of the next";
}

TEST(BackgroundPacer, AloneAStepIsFullUnlessItWouldHoldAnArrivalUp) {
  BackgroundPacer pacer;
  EXPECT_EQ(pacer.AllowanceAlone(kMaxRows), kMaxRows) << "nothing is known yet";
  EXPECT_EQ(pacer.AllowanceAlone(8), 8);
  for (int i = 0; i < 20; ++i) {
    const int32_t rows = i % 2 == 0 ? 100 : 2048;
    pacer.MeasureBackground(rows, 0.002 + 2e-5 * rows, false);
  }
  EXPECT_EQ(pacer.AllowanceAlone(kMaxRows), kMaxRows);
  for (int i = 0; i < 100; ++i) {
    const int32_t rows = i % 2 == 0 ? 100 : 256;
    pacer.MeasureBackground(rows, 0.005 + 5e-4 * rows, false);
  }
  EXPECT_NEAR(pacer.AllowanceAlone(kMaxRows), 190, 2);
  for (int i = 0; i < 100; ++i) pacer.MeasureBackground(i % 2 == 0 ? 1 : 4, 0.5, false);
  EXPECT_EQ(pacer.AllowanceAlone(kMaxRows), BackgroundPacer::kMinRowsAlone);
  EXPECT_EQ(pacer.AllowanceAlone(8), 8);
}

// A device on which a step of the requests takes `foreground` seconds and a background step of n
// rows fixed + n * per_row, both give or take a tenth. The rows of some passes cost half as much
// again.
struct Device {
  std::string name;
  double foreground;
  double fixed;
  double per_row;
};

class Beside : public ::testing::TestWithParam<Device> {};

TEST_P(Beside, StreamsBarelyFeelItAndItMovesOn) {
  const Device device = GetParam();
  BackgroundPacer pacer;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> jitter(0.9, 1.1);
  std::vector<double> between;  // times between a stream's tokens
  std::vector<double> undisturbed;
  double background = 0.0;
  double foreground = 0.0;
  double gap = 0.0;
  int64_t rows_done = 0;
  int64_t steps = 0;
  constexpr int kSteps = 40'000;
  for (int i = 0; i < kSteps; ++i) {
    const int32_t rows = pacer.Allowance(kMaxRows);
    if (rows > 0) {
      ASSERT_LE(rows, kMaxRows);
      const double seconds =
          (device.fixed + rows * device.per_row * (steps / 20 % 2 == 0 ? 1.0 : 1.5)) *
          jitter(random);
      pacer.MeasureBackground(rows, seconds, true);
      background += seconds;
      gap += seconds;
      rows_done += rows;
      ++steps;
    }
    // Now and then a prompt comes in, which makes its step longer.
    const double seconds = device.foreground * jitter(random) * (i % 500 == 0 ? 8.0 : 1.0);
    pacer.MeasureForeground(seconds);
    foreground += seconds;
    between.push_back(gap + seconds);
    undisturbed.push_back(seconds);
    gap = 0.0;
  }
  const auto p99 = [](std::vector<double> values) {
    const auto at = values.begin() + static_cast<int64_t>(values.size()) * 99 / 100;
    std::nth_element(values.begin(), at, values.end());
    return *at;
  };
  EXPECT_LE(p99(between), 1.5 * p99(undisturbed));
  EXPECT_LE(background, 0.125 * foreground);
  EXPECT_LE(steps, kSteps / 3);
  EXPECT_GE(rows_done, BackgroundPacer::kMinRows * kSteps / 1000);
  EXPECT_GE(background, 0.004 * foreground) << "what is allowed is used";
}

INSTANTIATE_TEST_SUITE_P(Devices, Beside,
                         ::testing::Values(Device{"ManyStreamsOnACpu", 0.040, 0.005, 0.0005},
                                           Device{"OneStreamOnACpu", 0.005, 0.0045, 0.0005},
                                           Device{"Gpu", 0.0005, 0.001, 1e-6},
                                           Device{"BusyGpu", 0.020, 0.002, 1e-5},
                                           Device{"LargeModelOnACpu", 1.0, 0.9, 0.1},
                                           Device{"RowsCostNothing", 0.010, 0.002, 0.0}),
                         [](const auto& device) { return device.param.name; });

}  // namespace
}  // namespace eta
