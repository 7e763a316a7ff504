// The root of g(c) = target: against plain arrays, at the ends of beta and density, and refused.

#include "calibration/solvers/frozen_threshold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/testing/kernels/calibration_reference.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;

constexpr double kForever = std::numeric_limits<double>::infinity();

FrozenThreshold Solve(std::span<const ScoreTriangle> sequences, const FrozenOptions& options,
                      const ScoreBins& bins = {}) {
  const auto solved =
      SolveFrozenThresholds(CollectWhole(sequences, bins, options.beta, options.offset), options);
  EXPECT_TRUE(solved.ok()) << solved.status();
  return solved.ok() ? solved->at(0) : FrozenThreshold();
}

struct Regime {
  double beta;
  double centre;  // of the thresholds; scores have deviation 2
  double offset;
};

class FrozenThresholdTest : public ::testing::TestWithParam<Regime> {};

TEST_P(FrozenThresholdTest, MeetsTheDynamicDensityOfPlainArrays) {
  const auto [beta, centre, offset] = GetParam();
  const std::vector<ScoreTriangle> sequences = {RandomTriangle(11, 70, 2, centre),
                                                RandomTriangle(12, 1, 2, centre),
                                                RandomTriangle(13, 33, 2, centre)};
  const FrozenThreshold solved = Solve(sequences, {.beta = beta, .offset = offset});
  const double root = solved.threshold - offset;
  EXPECT_NEAR(solved.target, MeanGate(sequences, beta, offset), 1e-12);
  EXPECT_NEAR(solved.reached, solved.target, 1e-12);
  EXPECT_NEAR(BinnedDensityAt(sequences, {}, beta, root), solved.target, 1e-12);
  // Scores lie at most half a bin from their centres.
  const double half = ScoreBins().width() / 2;
  EXPECT_GE(DensityAt(sequences, beta, root - half), solved.target - 1e-12);
  EXPECT_LE(DensityAt(sequences, beta, root + half), solved.target + 1e-12);
}

TEST_P(FrozenThresholdTest, NoNeighbourIsNearer) {
  const auto [beta, centre, offset] = GetParam();
  const std::vector<ScoreTriangle> sequences = {RandomTriangle(14, 50, 2, centre)};
  const ScoreHistogram histogram = CollectWhole(sequences, {}, beta, 0.0);
  const FrozenThreshold solved = Solve(sequences, {.beta = beta});
  const auto miss = [&, beta = beta](double c) {
    return std::abs(SoftDensity(histogram.head(0, 0), {}, beta, c) - solved.target);
  };
  EXPECT_EQ(solved.reached, SoftDensity(histogram.head(0, 0), {}, beta, solved.threshold));
  // Neighbours of c may round to the same or, by the last bit of the sum, to a nearer density.
  const double slack = 4e-16 * solved.target;
  EXPECT_LE(miss(solved.threshold), miss(std::nextafter(solved.threshold, -kForever)) + slack);
  EXPECT_LE(miss(solved.threshold), miss(std::nextafter(solved.threshold, kForever)) + slack);
}

INSTANTIATE_TEST_SUITE_P(Regimes, FrozenThresholdTest,
                         ::testing::Values(Regime{1, 0, 0}, Regime{1, 6, 0.75}, Regime{5, 0, 0},
                                           Regime{5, -7, 0}, Regime{5, 5, -1.25},
                                           Regime{5, 5, 1.25}, Regime{20, 0, 0},
                                           Regime{20, -5, 0.5}, Regime{20, 4, 0},
                                           Regime{20, 8, 0}));

TEST(FrozenThreshold, OneTokenAndOneScore) {
  ScoreTriangle one = {.tokens = 1, .scores = {1.5f}, .thresholds = {0.5f}};
  const FrozenThreshold solved = Solve(std::span(&one, 1), {.beta = 5.0});
  const ScoreBins bins;
  EXPECT_NEAR(solved.threshold, bins.centre(8192 + 192) - 1.0, 1e-13);
}

// A known root: half of a symmetric histogram lies above its middle, and 1/4 above ln(3)/beta.
TEST(FrozenThreshold, HeadDensityHasItsClosedForm) {
  ScoreTriangle one = {.tokens = 1, .scores = {2.0f}, .thresholds = {0.0f}};
  const double centre = ScoreBins().centre(8192 + 256);
  for (const double beta : {1.0, 5.0, 20.0}) {
    for (const double density : {1e-9, 0.25, 0.5, 0.999}) {
      const FrozenThreshold solved = Solve(std::span(&one, 1), {.beta = beta, .density = density});
      EXPECT_EQ(solved.target, density);
      EXPECT_NEAR(solved.threshold, centre - std::log(density / (1 - density)) / beta,
                  1e-15 / beta / (1 - density) + 4e-15);
    }
  }
}

// Sparse heads of real models: densities down to 1e-26 keep their relative precision.
TEST(FrozenThreshold, TinyTargetsAreMetRelatively) {
  const std::vector<ScoreTriangle> sequences = {RandomTriangle(15, 60, 2, 18.0)};
  const FrozenThreshold solved = Solve(sequences, {.beta = 5.0});
  EXPECT_LT(solved.target, 1e-20);
  EXPECT_GT(solved.target, 0.0);
  EXPECT_NEAR(solved.reached / solved.target, 1.0, 1e-12);
}

// Gates that are all 0 or all 1 in double precision: any constant on that side would do, and the
// one next to the scores is taken.
TEST(FrozenThreshold, SaturatedGates) {
  std::vector<ScoreTriangle> sequences = {RandomTriangle(16, 40, 1, 0)};
  const auto [lowest, highest] =
      std::minmax_element(sequences[0].scores.begin(), sequences[0].scores.end());
  for (const double beta : {1.0, 20.0}) {
    std::fill(sequences[0].thresholds.begin(), sequences[0].thresholds.end(), 1e6f);
    const FrozenThreshold masked = Solve(sequences, {.beta = beta});
    EXPECT_EQ(masked.target, 0.0);
    EXPECT_EQ(masked.reached, 0.0);
    EXPECT_GT(masked.threshold, *highest);
    EXPECT_LE(masked.threshold, *highest + 750.0 / beta);
    std::fill(sequences[0].thresholds.begin(), sequences[0].thresholds.end(), -1e6f);
    const FrozenThreshold open = Solve(sequences, {.beta = beta});
    EXPECT_EQ(open.target, 1.0);
    EXPECT_EQ(open.reached, 1.0);
    EXPECT_LT(open.threshold, *lowest);
    EXPECT_GE(open.threshold, *lowest - 40.0 / beta);
    EXPECT_EQ(Solve(sequences, {.beta = beta, .density = 1.0}).reached, 1.0);
  }
}

TEST(FrozenThreshold, DensityFallsFromOneToZero) {
  const std::vector<ScoreTriangle> sequences = {RandomTriangle(17, 40, 3, 0)};
  const ScoreHistogram histogram = CollectWhole(sequences, {}, 5.0, 0.0);
  const HeadScores head = histogram.head(0, 0);
  EXPECT_EQ(SoftDensity(head, {}, 5.0, -64.0 - 8.0), 1.0);
  EXPECT_EQ(SoftDensity(head, {}, 5.0, 64.0 + 150.0), 0.0);
  double last = 1.0;
  for (double c = -20.0; c < 20.0; c += 0.25) {
    const double density = SoftDensity(head, {}, 5.0, c);
    EXPECT_LE(density, last);
    last = density;
  }
  const ScoreHistogram empty = *ScoreHistogram::Create(1, 1);
  EXPECT_EQ(SoftDensity(empty.head(0, 0), {}, 5.0, 0.0), 0.0);
}

// The sum over many bins is exact to the last places, whatever their order of size.
TEST(FrozenThreshold, DensityIsSummedWithCompensation) {
  constexpr ScoreBins kFineBins = {.count = kMaxScoreBins, .low = -8.0, .high = 8.0};
  std::mt19937_64 random(19);
  std::vector<double> weights(kMaxScoreBins);
  for (double& weight : weights) {
    weight = std::exp(std::uniform_real_distribution<double>(0, 9)(random));
  }
  long double sum = 0.0L;
  long double total = 0.0L;
  for (int32_t b = 0; b < kFineBins.count; ++b) {
    const long double weight = weights[static_cast<size_t>(b)];
    sum +=
        weight / (1.0L + std::exp(-5.0L * (static_cast<long double>(kFineBins.centre(b)) - 1.0L)));
    total += weight;
  }
  const auto expected = static_cast<double>(sum / total);
  EXPECT_NEAR(SoftDensity({.weights = weights}, kFineBins, 5.0, 1.0), expected, 5e-16);
}

// Scores past the range do no harm far from the threshold, at the value the wider range gives.
TEST(FrozenThreshold, OutsideScoresFarFromTheThresholdAreHarmless) {
  std::vector<ScoreTriangle> sequences = {RandomTriangle(18, 64, 2, 1.0)};
  for (int32_t t = 0; t < 64; ++t) sequences[0].scores[static_cast<size_t>(t) * 64] = 60.0f;
  sequences[0].scores[64 * 40 + 7] = -300.0f;
  const ScoreBins narrow = {.count = 4096, .low = -16.0, .high = 16.0};
  const ScoreBins wide = {.count = 131072, .low = -512.0, .high = 512.0};
  ASSERT_EQ(narrow.width(), wide.width());
  const ScoreHistogram histogram = CollectWhole(sequences, narrow, 5.0, 0.0);
  EXPECT_EQ(histogram.head(0, 0).outside.above, 64);
  EXPECT_EQ(histogram.head(0, 0).outside.below, 1);
  EXPECT_NEAR(Solve(sequences, {.beta = 5.0}, narrow).threshold,
              Solve(sequences, {.beta = 5.0}, wide).threshold, 1e-12);
}

TEST(FrozenThreshold, OutsideScoresNearTheThresholdAreRefused) {
  ScoreHistogram histogram = *ScoreHistogram::Create(2, 3, {.count = 64, .low = -4.0, .high = 4.0});
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (int32_t h = 0; h < 3; ++h) {
      histogram.AddKeys(layer, h, 2, std::vector<float>{-1.0f, 1.0f});
      histogram.AddGate(layer, h, 2, 1.0);
    }
  }
  ASSERT_TRUE(SolveFrozenThresholds(histogram, {.beta = 20.0}).ok());
  // The same outlier: harmless to beta 20 with the threshold at 0, not to beta 1.
  histogram.AddKeys(1, 2, 1, std::vector<float>{5.0f});
  histogram.AddGate(1, 2, 1, 0.5);
  EXPECT_TRUE(SolveFrozenThresholds(histogram, {.beta = 20.0}).ok());
  const absl::Status refused = SolveFrozenThresholds(histogram, {.beta = 1.0}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetErrorDetail(refused).reason, "SCORES_OUT_OF_RANGE");
  EXPECT_EQ(GetErrorDetail(refused).metadata.at("layer"), "1");
  EXPECT_EQ(GetErrorDetail(refused).metadata.at("head"), "2");
  EXPECT_THAT(refused.message(), HasSubstr("layer 1, head 2: 0 scores below and 1 above"));
  EXPECT_THAT(refused.message(), HasSubstr("[-4, 4)"));
  // A target among the outliers is refused at any beta.
  EXPECT_FALSE(SolveFrozenThresholds(histogram, {.beta = 20.0, .density = 0.01}).ok());
}

TEST(FrozenThreshold, RefusesWhatItCannotSolve) {
  ScoreHistogram histogram = *ScoreHistogram::Create(1, 1);
  const auto status = [&](const FrozenOptions& options) {
    return SolveFrozenThresholds(histogram, options).status();
  };
  EXPECT_EQ(GetErrorDetail(status({.beta = 5.0})).reason, "NO_SCORES");
  EXPECT_EQ(GetErrorDetail(status({.beta = 5.0, .density = 0.5})).reason, "NO_SCORES");
  histogram.AddKeys(0, 0, 1, std::vector<float>{1.0f});
  EXPECT_EQ(GetErrorDetail(status({.beta = 5.0})).reason, "NO_SCORES");
  EXPECT_TRUE(status({.beta = 5.0, .density = 0.5}).ok());
  histogram.AddGate(0, 0, 1, 0.5);
  EXPECT_TRUE(status({.beta = 5.0}).ok());
  for (const double beta : {0.0, -1.0, 1e9, kForever, std::nan("")}) {
    EXPECT_THAT(status({.beta = beta}).message(), HasSubstr("beta"));
  }
  for (const double density : {0.0, -0.5, 1.5, std::nan("")}) {
    EXPECT_THAT(status({.beta = 5.0, .density = density}).message(),
                HasSubstr("target.head_density"));
  }
  EXPECT_THAT(status({.beta = 5.0, .offset = kForever}).message(), HasSubstr("offset"));
  ScoreHistogram torn = histogram;
  torn.AddGate(0, 0, 1, 0.5);  // a row without its keys
  EXPECT_EQ(SolveFrozenThresholds(torn, {.beta = 5.0}).status().code(),
            absl::StatusCode::kInternal);
  histogram.AddKeys(0, 0, 1, std::vector<float>{std::numeric_limits<float>::quiet_NaN()});
  EXPECT_EQ(GetErrorDetail(status({.beta = 5.0})).reason, "SCORES_NOT_FINITE");
}

}  // namespace
}  // namespace eta::testing
