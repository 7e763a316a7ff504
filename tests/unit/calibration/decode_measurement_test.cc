// Masses of rows and layers: their mean, and the percentile below which one in a hundred lies.

#include "calibration/calibrate/decode_measurement.h"

#include <gtest/gtest.h>

#include <vector>

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

}  // namespace
}  // namespace eta::testing
