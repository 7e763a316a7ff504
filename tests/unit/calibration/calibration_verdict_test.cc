// What held-out losses say: the increase of a perplexity with its interval, and the verdict.

#include "calibration/calibrate/calibration_verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "calibration/calibrate/perplexity_increase.h"
#include "engine/base/error.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;

constexpr size_t kTokens = 4096;

// Losses about `mean` that wave by `wave` from block to block.
DecodeMeasurement Measured(double mean, double wave = 0.0, size_t tokens = kTokens) {
  DecodeMeasurement measured;
  double sum = 0.0;
  for (size_t i = 0; i < tokens; ++i) {
    const double sign = i / kIntervalBlock % 2 == 0 ? 1.0 : -1.0;
    measured.losses.push_back(static_cast<float>(mean + sign * wave));
    sum += static_cast<double>(measured.losses.back());
  }
  measured.perplexity = std::exp(sum / static_cast<double>(tokens));
  measured.union_density = 0.4;
  return measured;
}

// Perplexities so many percent over full attention's.
CalibrationResult Result(double dynamic, double frozen) {
  CalibrationResult result;
  result.full = Measured(3.0);
  result.dynamic = Measured(3.0 + std::log1p(dynamic / 100.0));
  result.frozen = Measured(3.0 + std::log1p(frozen / 100.0), 0.01);
  return result;
}

TEST(IncreaseOver, HasTheIntervalOfTheSameTokens) {
  const PerplexityIncrease increase = IncreaseOver(Measured(3.0, 0.5), Measured(3.01, 0.52));
  EXPECT_NEAR(increase.percent, std::expm1(0.01) * 100.0, 1e-3);
  ASSERT_TRUE(increase.interval.has_value());
  EXPECT_LT(increase.interval->low, increase.percent);
  EXPECT_GT(increase.interval->high, increase.percent);
  // What both have in common cancels: 0.02 between the blocks is left of 0.5, of 16 blocks.
  EXPECT_NEAR(increase.interval->high - increase.percent,
              2.131 * 0.02 * std::sqrt(16.0 / 15) / 4 * 101, 0.02);
}

TEST(IncreaseOver, HasNoneOfTooFewTokensOrOfNoNumbers) {
  const auto few = static_cast<size_t>(kMinVerdictTokens - 1);
  EXPECT_FALSE(IncreaseOver(Measured(3.0, 0, few), Measured(3.1, 0, few)).interval.has_value());
  const auto enough = static_cast<size_t>(kMinVerdictTokens);
  EXPECT_TRUE(IncreaseOver(Measured(3.0, 0, enough), Measured(3.1, 0, enough)).interval);
  DecodeMeasurement infinite = Measured(3.0);
  infinite.losses[0] = INFINITY;
  EXPECT_FALSE(IncreaseOver(Measured(3.0), infinite).interval.has_value());
  infinite.losses[0] = NAN;
  EXPECT_FALSE(IncreaseOver(Measured(3.0), infinite).interval.has_value());
}

TEST(MeasuredTokens, AreThoseAfterTheFirstRowOfTheSecondHalves) {
  const std::vector<std::vector<int32_t>> sequences = {
      std::vector<int32_t>(160), std::vector<int32_t>(2048), {1}};
  EXPECT_EQ(MeasuredTokens(sequences), 79 + 1023);
}

TEST(JudgeHeldOut, ABoundOverFullAttentionIsOfTheHeldOutDocuments) {
  const ProfileTarget target = {ProfileTargetKind::kMaxPerplexityIncrease, 1.0};
  EXPECT_EQ(JudgeHeldOut(target, Result(0.0, 0.9)), absl::OkStatus());
  const absl::Status status = JudgeHeldOut(target, Result(0.0, 1.2));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(detail.reason, "TARGET_UNREACHABLE");
  EXPECT_EQ(detail.field, "target.max_perplexity_increase");
  EXPECT_EQ(detail.metadata.at("target"), "1");
  EXPECT_NEAR(std::stod(detail.metadata.at("nearest")), 1.2, 0.01);
  EXPECT_LT(std::stod(detail.metadata.at("low")), 1.2);
  EXPECT_GT(std::stod(detail.metadata.at("high")), 1.2);
}

TEST(JudgeHeldOut, ABoundOverFullAttentionIsOfTheDivergenceToo) {
  const ProfileTarget target = {ProfileTargetKind::kMaxPerplexityIncrease, 1.0};
  CalibrationResult result = Result(0.0, -0.5);
  result.frozen.divergence =
      MeasuredDivergence{.nats = 0.009, .rows = std::vector<float>(1024, 0.009f), .block = 64};
  EXPECT_EQ(JudgeHeldOut(target, result), absl::OkStatus());
  result.frozen.divergence->nats = 0.02;
  const absl::Status status = JudgeHeldOut(target, result);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(detail.reason, "TARGET_UNREACHABLE");
  EXPECT_EQ(detail.field, "target.max_perplexity_increase");
  EXPECT_NEAR(std::stod(detail.metadata.at("nearest")), 2.02, 0.01);
  EXPECT_THAT(std::string(status.message()), HasSubstr("by their divergence from it"));
  // Neither flatters the other.
  result.frozen = Result(0.0, 1.2).frozen;
  result.frozen.divergence = MeasuredDivergence{.nats = 0.001, .rows = {0.001f}};
  EXPECT_FALSE(JudgeHeldOut(target, result).ok());
}

TEST(JudgeHeldOut, ABoundOverDynamicThresholdsIsOfTheHeldOutDocuments) {
  const ProfileTarget target = {ProfileTargetKind::kDynamicUnionDensity, 0.5};
  EXPECT_EQ(JudgeHeldOut(target, Result(-5.0, -4.6)), absl::OkStatus());
  const absl::Status status = JudgeHeldOut(target, Result(-5.0, -3.0));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(detail.reason, "TARGET_UNREACHABLE");
  EXPECT_EQ(detail.field, "target.dynamic_union_density");
  EXPECT_EQ(detail.metadata.at("target"), "0.5");
  EXPECT_NEAR(std::stod(detail.metadata.at("nearest")), 2.1, 0.1);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("at most 0.5 % over dynamic thresholds', the held-out documents came to"));
}

TEST(JudgeHeldOut, OtherTargetsBoundNoPerplexity) {
  for (const ProfileTarget& target :
       {ProfileTarget{}, ProfileTarget{ProfileTargetKind::kUnionDensity, 0.4},
        ProfileTarget{ProfileTargetKind::kHeadDensity, 0.4}}) {
    EXPECT_EQ(JudgeHeldOut(target, Result(0.0, 50.0)), absl::OkStatus());
  }
}

TEST(JudgeHeldOut, AMassIsOfTheHeldOutDocuments) {
  const ProfileTarget target = {ProfileTargetKind::kRetainedMass, 0.95};
  CalibrationResult result = Result(0.0, 50.0);
  result.frozen.mass = RetainedMass{.mean = 0.95, .p1 = 0.7, .rows = {}};
  EXPECT_EQ(JudgeHeldOut(target, result), absl::OkStatus());
  result.frozen.mass->mean = 0.9449;
  const absl::Status status = JudgeHeldOut(target, result);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(detail.reason, "TARGET_UNREACHABLE");
  EXPECT_EQ(detail.field, "target.retained_mass");
  EXPECT_EQ(detail.metadata.at("target"), "0.95");
  EXPECT_EQ(detail.metadata.at("nearest"), "0.9449");
  EXPECT_EQ(detail.metadata.at("p1"), "0.7");
}

TEST(SetMeasurements, CarriesTheMassThatWasMeasured) {
  CalibrationResult result = Result(0.0, 1.0);
  ProfileEvidence evidence;
  SetMeasurements(result, evidence);
  EXPECT_EQ(evidence.retained_mass, std::nullopt);
  result.frozen.mass = RetainedMass{.mean = 0.957, .p1 = 0.88, .rows = {}};
  SetMeasurements(result, evidence);
  EXPECT_EQ(evidence.retained_mass, 0.957);
  EXPECT_EQ(evidence.retained_mass_p1, 0.88);
}

TEST(SetMeasurements, CarriesTheDivergenceBesideThePerplexity) {
  CalibrationResult result = Result(0.0, 1.0);
  result.frozen.divergence = MeasuredDivergence{.nats = 0.004, .rows = {0.003f, 0.005f}};
  ProfileEvidence evidence;
  SetMeasurements(result, evidence);
  EXPECT_EQ(evidence.divergence, (Divergence{.nats = 0.004, .rows = 2}));
  EXPECT_EQ(evidence.perplexity_frozen, result.frozen.perplexity);
  result.frozen.divergence.reset();
  SetMeasurements(result, evidence);
  EXPECT_EQ(evidence.divergence, std::nullopt);
}

TEST(SetMeasurements, CarriesTheIntervals) {
  const CalibrationResult result = Result(-5.0, -4.0);
  ProfileEvidence evidence;
  evidence.held_out_tokens = 7;
  SetMeasurements(result, evidence);
  EXPECT_EQ(evidence.perplexity_frozen, result.frozen.perplexity);
  EXPECT_EQ(evidence.dynamic_union_density, 0.4);
  EXPECT_EQ(evidence.increase_over_full, IncreaseOver(result.full, result.frozen).interval);
  EXPECT_EQ(evidence.increase_over_dynamic, IncreaseOver(*result.dynamic, result.frozen).interval);
  EXPECT_TRUE(evidence.increase_over_dynamic.has_value());
  EXPECT_EQ(evidence.held_out_tokens, 7);
}

}  // namespace
}  // namespace eta::testing
