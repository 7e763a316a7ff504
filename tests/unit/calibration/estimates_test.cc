// Means and intervals: masses of rows and layers with the percentile below which one in a hundred
// lies; intervals by leaving groups out, against Student's where that is the answer, and by hand.
#include <cmath>
#include <vector>

#include "calibration/calibrate/decode_measurement.h"
#include "calibration/solvers/interval.h"
#include "calibration/solvers/jackknife.h"
#include "gtest/gtest.h"

namespace eta::testing {
namespace {

// An outcome of `rows` decode rows, whose masses [rows, layers] are given.
PassOutcome Outcome(int64_t rows, std::vector<float> mass) {
  PassOutcome outcome;
  outcome.attention.decode_rows = rows;
  outcome.mass = std::move(mass);
  return outcome;
}

TEST(DecodeMeter, MeansAreOfRowsAndPercentilesOfRowsAndLayers) {
  DecodeMeter meter;
  meter.Add(Outcome(2, {0.5f, 1.0f, 0.25f, 0.75f}));
  meter.Add(Outcome(1, {1.0f, 1.0f}));
  const DecodeMeasurement measured = meter.Measurement();
  ASSERT_TRUE(measured.mass.has_value());
  EXPECT_EQ(measured.mass->rows, (std::vector<float>{0.75f, 0.5f, 1.0f}));
  EXPECT_DOUBLE_EQ(measured.mass->mean, 0.75);
  EXPECT_DOUBLE_EQ(measured.mass->p1, 0.25) << "of six one in a hundred is the least";
}

TEST(DecodeMeter, OneInAHundredLiesAtOrBelowThePercentile) {
  std::vector<float> mass(1000, 0.9f);
  for (int i = 0; i < 9; ++i) mass[static_cast<size_t>(i) * 100] = 0.125f;
  DecodeMeter nine;
  nine.Add(Outcome(500, mass));
  EXPECT_NEAR(nine.Measurement().mass->p1, 0.9, 1e-4);
  mass[950] = 0.125f;
  DecodeMeter ten;
  ten.Add(Outcome(500, mass));
  EXPECT_DOUBLE_EQ(ten.Measurement().mass->p1, 0.125);
}

TEST(DecodeMeter, RoundingLeadsOutOfNoRange) {
  DecodeMeter meter;
  meter.Add(Outcome(1, {1.0000002f, 1.0000001f}));
  EXPECT_EQ(meter.Measurement().mass->mean, 1.0);
  EXPECT_EQ(meter.Measurement().mass->p1, 1.0);
  DecodeMeter none;
  none.Add(Outcome(1, {0.0f}));
  EXPECT_EQ(none.Measurement().mass->p1, 0.0);
}

TEST(DecodeMeter, HasNoMassThatNobodyMeasured) {
  DecodeMeter meter;
  meter.Add(Outcome(3, {}));
  EXPECT_FALSE(meter.Measurement().mass.has_value());
}

TEST(Jackknife, OfAMeanIsStudents) {
  const std::vector<double> values = {3.0, 1.0, 4.0, 1.0, 5.0, 9.0};
  std::vector<std::vector<double>> groups;
  double squares = 0.0;
  for (const double value : values) {
    groups.push_back({value, 1.0});
    squares += (value - 23.0 / 6.0) * (value - 23.0 / 6.0);
  }
  const Estimate estimate = JackknifeRatio(groups, 0, 1);
  EXPECT_NEAR(estimate.value.value(), 23.0 / 6.0, 1e-12);
  EXPECT_NEAR(estimate.half_width.value(), StudentQuantile(5) * std::sqrt(squares / 5 / 6), 1e-12);
  EXPECT_NEAR(StudentQuantile(5), 2.5706, 5e-3);
}

TEST(Jackknife, OfARatioByHand) {
  const std::vector<std::vector<double>> groups = {{1, 2}, {2, 2}, {0, 4}, {5, 8}};
  const Estimate estimate = JackknifeRatio(groups, 0, 1);
  EXPECT_DOUBLE_EQ(estimate.value.value(), 0.5);
  const std::vector<double> without = {7.0 / 14, 6.0 / 14, 8.0 / 12, 3.0 / 8};
  const double mean = (without[0] + without[1] + without[2] + without[3]) / 4;
  double squares = 0.0;
  for (const double value : without) squares += (value - mean) * (value - mean);
  EXPECT_NEAR(estimate.half_width.value(), StudentQuantile(3) * std::sqrt(0.75 * squares), 1e-12);
}

TEST(Jackknife, SaysNothingWhereThereIsNothing) {
  EXPECT_FALSE(JackknifeRatio({}, 0, 1).value.has_value());
  EXPECT_FALSE(JackknifeRatio(std::vector<std::vector<double>>{{0, 0}}, 0, 1).value.has_value());
  const std::vector<std::vector<double>> few = {{1, 2}, {2, 2}, {0, 4}};
  EXPECT_TRUE(JackknifeRatio(few, 0, 1).value.has_value());
  EXPECT_FALSE(JackknifeRatio(few, 0, 1).half_width.has_value());
  // Without the first group nothing is left to divide by.
  const std::vector<std::vector<double>> one = {{1, 2}, {0, 0}, {0, 0}, {0, 0}};
  EXPECT_TRUE(JackknifeRatio(one, 0, 1).value.has_value());
  EXPECT_FALSE(JackknifeRatio(one, 0, 1).half_width.has_value());
}

}  // namespace
}  // namespace eta::testing
