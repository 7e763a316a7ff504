// Shifts found by measurement: of smooth, stepped, torn and unreachable densities.

#include "calibration/solvers/union_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;

constexpr double kTolerance = 0.0025;

// A union density: falls with the shift between a ceiling and the floor of pinned blocks.
double Smooth(double shift) {
  return 0.12 + 0.86 / (1.0 + std::exp(0.8 * (shift - 1.7)));
}

absl::StatusOr<ShiftResult> Solve(double target, const std::function<double(double)>& density,
                                  const ShiftSearch& search = {}) {
  return SolveDensityShift("target.union_density", target, kTolerance, search,
                           [&](double shift) { return density(shift); });
}

TEST(DensityShift, MeetsTargetsInFewMeasurements) {
  int measurements = 0;
  for (const double target : {0.97, 0.5, 0.35, 0.25, 0.13}) {
    const auto solved = Solve(target, Smooth).value();
    EXPECT_NEAR(solved.value, target, kTolerance);
    EXPECT_EQ(solved.value, Smooth(solved.shift));
    measurements += solved.measurements;
  }
  EXPECT_LE(measurements, 32);
}

TEST(DensityShift, StopsAtTheFirstMeasurementThatMeetsIt) {
  const auto solved = Solve(Smooth(0.0) + kTolerance / 2, Smooth).value();
  EXPECT_EQ(solved.shift, 0.0);
  EXPECT_EQ(solved.measurements, 1);
}

// Whole blocks come and go: a density in steps, flat for long stretches.
TEST(DensityShift, PlateausAreCrossed) {
  const auto steps = [](double shift) {
    return std::clamp(0.5 - 0.1 * std::floor(shift), 0.1, 0.9);
  };
  for (const double target : {0.8, 0.4, 0.2}) {
    const auto solved = Solve(target, steps).value();
    EXPECT_NEAR(solved.value, target, 1e-12);
  }
}

TEST(DensityShift, ATargetBetweenTwoStepsNamesTheNearest) {
  const auto jump = [](double shift) { return shift < 3.3 ? 0.7 : 0.3; };
  const absl::Status status = Solve(0.6, jump).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(detail.reason, "TARGET_UNREACHABLE");
  EXPECT_EQ(detail.field, "target.union_density");
  EXPECT_EQ(detail.metadata.at("target"), "0.6");
  EXPECT_EQ(detail.metadata.at("nearest"), "0.7");
  EXPECT_NEAR(std::stod(detail.metadata.at("shift")), 3.3, ShiftSearch().resolution);
  EXPECT_EQ(GetErrorDetail(Solve(0.4, jump).status()).metadata.at("nearest"), "0.3");
}

TEST(DensityShift, FloorAndCeilingAreUnreachable) {
  int measurements = 0;
  const auto counted = [&](double shift) {
    ++measurements;
    return Smooth(shift);
  };
  const ErrorDetail floor = GetErrorDetail(Solve(0.05, counted).status());
  EXPECT_NEAR(std::stod(floor.metadata.at("nearest")), 0.12, 1e-6);
  EXPECT_LE(measurements, 11);
  const ErrorDetail ceiling = GetErrorDetail(Solve(1.0, counted).status());
  EXPECT_NEAR(std::stod(ceiling.metadata.at("nearest")), 0.98, 1e-6);
}

TEST(DensityShift, StaysWithinTheLargestShift) {
  double lowest = 0.0;
  double highest = 0.0;
  const auto watched = [&](double shift) {
    lowest = std::min(lowest, shift);
    highest = std::max(highest, shift);
    return Smooth(shift);
  };
  EXPECT_FALSE(Solve(0.05, watched, {.max_shift = 100.0}).ok());
  EXPECT_FALSE(Solve(1.0, watched, {.max_shift = 100.0}).ok());
  EXPECT_EQ(lowest, -100.0);
  EXPECT_EQ(highest, 100.0);
}

// Later layers see what earlier ones let through: measured densities need not be quite monotone.
TEST(DensityShift, RipplesOnlyCostAccuracy) {
  for (const double phase : {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}) {
    const auto rippled = [&](double shift) {
      return std::clamp(Smooth(shift) + 0.01 * std::sin(40.0 * shift + phase), 0.0, 1.0);
    };
    for (const double target : {0.5, 0.35, 0.25}) {
      const auto solved = Solve(target, rippled).value();
      EXPECT_NEAR(solved.value, target, kTolerance);
    }
  }
}

TEST(MassShift, IsTheSparsestThatKeepsTheMass) {
  const auto mass = [](double shift) { return 1.0 / (1.0 + std::exp(shift - 3.0)); };
  const ShiftSearch search = {.first_step = 0.25, .max_shift = 64.0, .resolution = 1.0 / 8};
  for (const double least : {0.99, 0.95, 0.5, 0.02}) {
    const auto solved = SolveMassShift(least, search, mass).value();
    EXPECT_GE(solved.value, least);
    EXPECT_EQ(solved.value, mass(solved.shift));
    EXPECT_LT(mass(solved.shift + 1.0 / 8), least);
  }
  // What is just kept may grow sparser.
  const auto whole = [](double shift) { return shift <= 5.0 ? 1.0 : 0.9; };
  EXPECT_NEAR(SolveMassShift(1.0, search, whole)->shift, 5.0, 1.0 / 8);
}

TEST(MassShift, NamesWhatIsWrong) {
  const auto status = SolveMassShift(0.9, {}, [](double) { return 0.7; }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(detail.reason, "TARGET_UNREACHABLE");
  EXPECT_EQ(detail.field, "target.retained_mass");
  EXPECT_EQ(detail.metadata.at("nearest"), "0.7");
  for (const double least : {0.0, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(SolveMassShift(least, {}, [](double) { return 1.0; }).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(SolveMassShift(0.9, {}, [](double) { return 1.5; }).status().code(),
            absl::StatusCode::kInternal);
}

TEST(DensityShift, MeasurementsAreBounded) {
  for (const int limit : {1, 2, 5, 9}) {
    int measurements = 0;
    const absl::Status status = Solve(0.4321,
                                      [&](double shift) {
                                        ++measurements;
                                        return shift < 1.2345 ? 1.0 : 0.2;
                                      },
                                      {.max_measurements = limit})
                                    .status();
    EXPECT_EQ(GetErrorDetail(status).reason, "TARGET_UNREACHABLE");
    EXPECT_EQ(measurements, limit);
  }
}

TEST(DensityShift, ErrorsOfTheMeasurementComeThrough) {
  int left = 4;
  const auto failing = [&](double shift) -> absl::StatusOr<double> {
    if (--left == 0) return absl::CancelledError("gone");
    return Smooth(shift);
  };
  const auto solved = SolveDensityShift("target", 0.13, 1e-9, {}, failing);
  EXPECT_EQ(solved.status(), absl::CancelledError("gone"));
  EXPECT_EQ(left, 0);
  for (const double bad : {-0.1, 1.1, std::nan("")}) {
    EXPECT_EQ(Solve(0.5, [bad](double) { return bad; }).status().code(),
              absl::StatusCode::kInternal);
  }
}

TEST(DensityShift, RefusesOptionsOutOfLimits) {
  for (const double target : {0.0, -1.0, 1.01, std::nan("")}) {
    EXPECT_THAT(Solve(target, Smooth).status().message(), HasSubstr("target.union_density"));
  }
  EXPECT_EQ(Solve(0.5, Smooth, {.first_step = 0.0}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Solve(0.5, Smooth, {.max_shift = 0.1}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Solve(0.5, Smooth, {.max_measurements = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SolveDensityShift("t", 0.5, -1.0, {}, [](double) { return 0.5; }).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Increase in percent of a perplexity of 20, growing with the shift past a shallow valley.
double Increase(double shift) {
  return 0.05 * (shift + 1.0) * (shift + 1.0) - 0.2;
}

absl::StatusOr<ShiftResult> SolvePerplexity(double percent,
                                            const std::function<double(double)>& increase,
                                            const ShiftSearch& search = {}) {
  return SolvePerplexityShift(20.0, percent, search,
                              [&](double shift) { return 20.0 * (1.0 + increase(shift) / 100.0); });
}

TEST(PerplexityShift, TakesTheSparsestThatFits) {
  for (const double percent : {0.0, 0.5, 1.0, 5.0}) {
    const auto solved = SolvePerplexity(percent, Increase).value();
    const double edge = std::sqrt((percent + 0.2) / 0.05) - 1.0;
    EXPECT_LE(solved.value, percent);
    EXPECT_LE(solved.shift, edge + 1e-9);
    EXPECT_GT(solved.shift, edge - ShiftSearch().resolution - 1e-9);
  }
}

TEST(PerplexityShift, LooksDownwardsFromAnUnfitStart) {
  const auto solved = SolvePerplexity(0.5, [](double shift) { return Increase(shift + 9.0); });
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_NEAR(solved->shift, std::sqrt(14.0) - 1.0 - 9.0, ShiftSearch().resolution);
}

TEST(PerplexityShift, InfinityIsUnfitAndTheEndOfTheSearchFits) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto torn =
      SolvePerplexity(1.0, [&](double shift) { return shift <= 0.7 ? 0.0 : infinity; });
  ASSERT_TRUE(torn.ok()) << torn.status();
  EXPECT_NEAR(torn->shift, 0.7, ShiftSearch().resolution);
  EXPECT_LE(torn->measurements, 16);
  const auto flat = SolvePerplexity(1.0, [](double) { return 0.9; });
  ASSERT_TRUE(flat.ok());
  EXPECT_EQ(flat->shift, ShiftSearch().max_shift);
}

TEST(PerplexityShift, UnreachableNamesTheSmallestIncrease) {
  const absl::Status status =
      SolvePerplexity(0.5, [](double shift) { return 2.0 + std::abs(shift + 4.0); }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(detail.field, "target.max_perplexity_increase");
  EXPECT_NEAR(std::stod(detail.metadata.at("nearest")), 2.0, 1e-5);
  EXPECT_EQ(detail.metadata.at("shift"), "-4");
}

TEST(PerplexityShift, RefusesWhatIsNoPerplexity) {
  EXPECT_EQ(SolvePerplexity(-0.1, Increase).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SolvePerplexity(std::nan(""), Increase).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SolvePerplexity(1.0, [](double) { return std::nan(""); }).status().code(),
            absl::StatusCode::kInternal);
  for (const double full : {0.5, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(SolvePerplexityShift(full, 1.0, {}, [](double) { return 20.0; }).status().code(),
              absl::StatusCode::kInternal);
  }
}

TEST(ShiftThresholds, RoundsOnce) {
  const std::vector<double> constants = {0.1, -7.755898675539917};
  const std::vector<float> shifted = ShiftThresholds(constants, 1.0 / 3.0);
  EXPECT_EQ(shifted, (std::vector<float>{static_cast<float>(0.1 + 1.0 / 3.0),
                                         static_cast<float>(-7.755898675539917 + 1.0 / 3.0)}));
}

}  // namespace
}  // namespace eta::testing
