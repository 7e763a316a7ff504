// Intervals by leaving groups out: against Student's where that is the answer, and by hand.
#include "calibration/solvers/jackknife.h"

#include <cmath>
#include <vector>

#include "calibration/solvers/interval.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

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
}  // namespace eta
