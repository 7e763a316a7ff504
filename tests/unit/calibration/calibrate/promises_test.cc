// What a profile may cost: by default little perplexity and no needle; more if it is allowed.

#include "calibration/calibrate/promises.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "engine/base/error.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;

ProfileEvidence Evidence(double percent, NeedleHits single, NeedleHits multi) {
  ProfileEvidence evidence;
  evidence.perplexity_full = 10.0;
  evidence.perplexity_frozen = 10.0 * (1.0 + percent / 100.0);
  evidence.increase_over_full = PercentInterval{.low = percent - 0.5, .high = percent + 0.5};
  evidence.single_needles = single;
  evidence.multi_needles = multi;
  return evidence;
}

constexpr NeedleHits kAll = {.asked = 6, .full = 6, .frozen = 6, .kept = 6};
constexpr NeedleHits kOneLost = {.asked = 6, .full = 6, .frozen = 5, .kept = 5};

CalibrationJob Job() {
  return {.id = "job", .target = {ProfileTargetKind::kUnionDensity, 0.3}};
}

TEST(JudgePromises, AllowsLittlePerplexityAndNoNeedle) {
  EXPECT_EQ(JudgePromises(Job(), Evidence(2.9, kAll, kAll)), absl::OkStatus());
  EXPECT_EQ(JudgePromises(Job(), Evidence(-5.0, kAll, kAll)), absl::OkStatus());
  ProfileEvidence unmeasured = Evidence(1.0, kAll, kAll);
  unmeasured.single_needles.reset();
  unmeasured.multi_needles.reset();
  EXPECT_EQ(JudgePromises(Job(), unmeasured), absl::OkStatus());
}

TEST(JudgePromises, SaysWhatWouldBeLost) {
  const absl::Status status = JudgePromises(Job(), Evidence(3.5, kAll, kOneLost));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(detail.reason, "PROFILE_LOSES");
  EXPECT_NEAR(std::stod(detail.metadata.at("increase")), 3.5, 1e-4);
  EXPECT_EQ(detail.metadata.at("max_increase"), "3");
  EXPECT_EQ(detail.metadata.at("needles_full"), "12");
  EXPECT_EQ(detail.metadata.at("needles_kept"), "11");
  EXPECT_NEAR(std::stod(detail.metadata.at("kept_low")), 0.646, 1e-3);
  EXPECT_NEAR(std::stod(detail.metadata.at("kept_high")), 0.985, 1e-3);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("perplexity +3.50 % over full attention's, more than 3 %, and 1 of the 12 "
                        "needles that full attention finds"));
  EXPECT_EQ(GetErrorDetail(JudgePromises(Job(), Evidence(0.0, kOneLost, kAll))).reason,
            "PROFILE_LOSES");
}

// Another one that only the profile finds makes up for nothing.
TEST(JudgePromises, ANeedleIsOneThatFullAttentionFinds) {
  const NeedleHits swapped = {.asked = 6, .full = 5, .frozen = 5, .kept = 4};
  EXPECT_EQ(GetErrorDetail(JudgePromises(Job(), Evidence(0.0, kAll, swapped))).reason,
            "PROFILE_LOSES");
  const NeedleHits gained = {.asked = 6, .full = 0, .frozen = 2, .kept = 0};
  EXPECT_EQ(JudgePromises(Job(), Evidence(0.0, gained, gained)), absl::OkStatus());
}

TEST(JudgePromises, ATargetThatNamesALargerLossAllowsIt) {
  CalibrationJob job = Job();
  job.target = {ProfileTargetKind::kMaxPerplexityIncrease, 10.0};
  EXPECT_EQ(JudgePromises(job, Evidence(9.0, kAll, kAll)), absl::OkStatus());
  EXPECT_EQ(GetErrorDetail(JudgePromises(job, Evidence(9.0, kAll, kOneLost))).reason,
            "PROFILE_LOSES");
  job.target.value = 0.5;  // judged elsewhere
  EXPECT_EQ(JudgePromises(job, Evidence(2.0, kAll, kAll)), absl::OkStatus());
}

TEST(JudgePromises, AllowLossAllowsAnyLoss) {
  CalibrationJob job = Job();
  job.allow_loss = true;
  const NeedleHits none = {.asked = 6, .full = 6, .frozen = 0, .kept = 0};
  EXPECT_EQ(JudgePromises(job, Evidence(67.0, none, none)), absl::OkStatus());
}

// bad input: Calibrate | `min_retrieval` that the profile does not keep, or full attention itself |
//   FAILED_PRECONDITION, TARGET_UNREACHABLE, with `allow_loss` too; nothing is stored |
//   BadProfileTest.ARetrievalThatIsNotKeptStoresNothing
TEST(JudgePromises, ARetrievalThatIsAskedForIsKept) {
  CalibrationJob job = Job();
  job.min_retrieval = 0.9;
  EXPECT_EQ(JudgePromises(job, Evidence(0.0, kAll, kOneLost)), absl::OkStatus()) << "11 of 12";
  job.min_retrieval = 0.95;
  job.allow_loss = true;
  const absl::Status status = JudgePromises(job, Evidence(0.0, kAll, kOneLost));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(detail.reason, "TARGET_UNREACHABLE");
  EXPECT_EQ(detail.field, "min_retrieval");
  EXPECT_EQ(detail.metadata.at("target"), "0.95");
  EXPECT_NEAR(std::stod(detail.metadata.at("nearest")), 11.0 / 12, 1e-5);
  EXPECT_THAT(std::string(status.message()), HasSubstr("kept 11 of 12 (95 %: 0.65 to 0.99)"));
}

// Neither end of the interval: by the upper one 10 of 12 would keep 0.95, by the lower one nothing
// would.
TEST(JudgePromises, AShareIsJudgedAsItWasMeasured) {
  CalibrationJob job = Job();
  job.min_retrieval = 0.95;
  ASSERT_GT(KeptShare({.full = 12, .kept = 10})->high, 0.95);
  EXPECT_EQ(GetErrorDetail(JudgePromises(job, Evidence(0.0, kOneLost, kOneLost))).reason,
            "TARGET_UNREACHABLE");
  ASSERT_LT(KeptShare({.full = 12, .kept = 12})->low, 0.95);
  EXPECT_EQ(JudgePromises(job, Evidence(0.0, kAll, kAll)), absl::OkStatus());
}

TEST(KeptShare, IsAnIntervalOfWhatFullAttentionFinds) {
  const auto all = KeptShare({.asked = 12, .full = 12, .frozen = 12, .kept = 12});
  ASSERT_TRUE(all.has_value());
  EXPECT_NEAR(all->low, 0.757, 1e-3);
  EXPECT_NEAR(all->high, 1.0, 1e-9);
  const auto two = KeptShare({.asked = 12, .full = 2, .frozen = 9, .kept = 1});
  ASSERT_TRUE(two.has_value());
  EXPECT_NEAR(two->low, 0.095, 1e-3) << "as of one of two, whatever else was asked";
  EXPECT_FALSE(KeptShare({.asked = 12, .full = 0, .frozen = 3, .kept = 0}).has_value());
}

TEST(Unverified, IsWhatHasTooFewTokensForAnInterval) {
  ProfileEvidence evidence = Evidence(0.0, kAll, kAll);
  EXPECT_FALSE(Unverified(evidence));
  evidence.increase_over_full.reset();
  EXPECT_TRUE(Unverified(evidence));
}

TEST(JudgePromises, WhatFullAttentionDoesNotFindPromisesNothing) {
  CalibrationJob job = Job();
  job.min_retrieval = 0.5;
  const NeedleHits none = {.asked = 6, .full = 0, .frozen = 3, .kept = 0};
  const absl::Status status = JudgePromises(job, Evidence(0.0, none, none));
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(detail.field, "min_retrieval");
  EXPECT_EQ(detail.metadata.count("kept_low"), 0u) << "of nothing there is no interval";
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("none of the 12 needles, so that retrieval cannot be judged"));
}

TEST(JudgePromises, APerplexityThatIsNoNumberIsALoss) {
  ProfileEvidence evidence = Evidence(0.0, kAll, kAll);
  evidence.perplexity_frozen = NAN;
  EXPECT_EQ(GetErrorDetail(JudgePromises(Job(), evidence)).reason, "PROFILE_LOSES");
}

TEST(ToBeStaged, WhatLosesOrIsDominatedUnlessThatIsAllowed) {
  CalibrationJob job = Job();
  const ProfileEvidence loses = Evidence(0.0, kAll, kOneLost);
  EXPECT_FALSE(ToBeStaged(job, loses)) << "Calibrate makes none of that target";
  job.target = {ProfileTargetKind::kDynamicUnionDensity, 0.5};
  EXPECT_FALSE(ToBeStaged(job, Evidence(0.0, kAll, kAll)));
  EXPECT_TRUE(ToBeStaged(job, loses));
  job.min_retrieval = 0.5;
  EXPECT_FALSE(ToBeStaged(job, loses)) << "as many as were asked for";
  ProfileEvidence dominated = loses;
  dominated.perplexity_dynamic = dominated.perplexity_frozen;
  dominated.dynamic_union_density = dominated.union_density;
  EXPECT_TRUE(ToBeStaged(job, dominated));
  job.allow_loss = true;
  EXPECT_FALSE(ToBeStaged(job, dominated));
}

TEST(DynamicDominates, WhatReadsNoMoreAndCostsNoMore) {
  ProfileEvidence evidence = Evidence(0.62, kAll, kAll);
  evidence.union_density = 0.657;
  EXPECT_FALSE(DynamicDominates(evidence)) << "there are no dynamic thresholds";
  evidence.perplexity_dynamic = 10.034;
  evidence.dynamic_union_density = 0.38;
  EXPECT_TRUE(DynamicDominates(evidence));
  evidence.perplexity_dynamic = evidence.perplexity_frozen;
  evidence.dynamic_union_density = evidence.union_density;
  EXPECT_TRUE(DynamicDominates(evidence)) << "the profile gives nothing";
  evidence.perplexity_dynamic = evidence.perplexity_frozen + 0.001;
  EXPECT_FALSE(DynamicDominates(evidence)) << "it costs less";
  evidence.perplexity_dynamic = 9.0;
  evidence.dynamic_union_density = 0.658;
  EXPECT_FALSE(DynamicDominates(evidence)) << "it reads less";
  evidence.dynamic_union_density = 0.38;
  ASSERT_TRUE(DynamicDominates(evidence));
  evidence.increase_over_full.reset();
  EXPECT_FALSE(DynamicDominates(evidence)) << "too few tokens for a verdict";
}

TEST(NameNearest, EndsAFailureWithWhatToAskFor) {
  const absl::Status failure = JudgePromises(Job(), Evidence(3.5, kAll, kOneLost));
  ProfileEvidence passing = Evidence(2.5, kAll, kAll);
  passing.union_density = 0.421;
  const absl::Status status = NameNearest(failure, Job(), 0.412, passing);
  EXPECT_EQ(status.code(), failure.code());
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(detail.reason, "PROFILE_LOSES");
  EXPECT_EQ(detail.metadata.at("needles_kept"), "11") << "what stood there stays";
  EXPECT_EQ(detail.metadata.at("nearest_request"), "union_density=0.412");
  EXPECT_EQ(detail.metadata.at("nearest_reads"), "0.421");
  EXPECT_NEAR(std::stod(detail.metadata.at("nearest_increase")), 2.5, 1e-4);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("; the nearest request that passes: union_density=0.412 (reads 42.1 %, "
                "perplexity +2.50 % over full attention's, keeps 12 of 12 needles, 95 %: 0.76 to "
                "1.00)"));
}

TEST(NameNearest, SaysWhatElseMustChange) {
  CalibrationJob job = Job();
  const absl::Status failure = JudgePromises(job, Evidence(9.0, kAll, kAll));
  const auto request = [&](const ProfileEvidence& evidence) {
    return GetErrorDetail(NameNearest(failure, job, 0.5, evidence)).metadata.at("nearest_request");
  };
  EXPECT_EQ(request(Evidence(4.0, kAll, kAll)), "union_density=0.5, allow_loss=true");
  job.min_retrieval = 0.95;
  EXPECT_EQ(request(Evidence(0.0, kAll, kAll)), "union_density=0.5");
  EXPECT_EQ(request(Evidence(0.0, kAll, kOneLost)), "union_density=0.5, min_retrieval=0.91");
  constexpr NeedleHits kNone = {.asked = 6, .full = 0, .frozen = 1, .kept = 0};
  EXPECT_EQ(request(Evidence(4.0, kNone, kNone)),
            "union_density=0.5, no min_retrieval, allow_loss=true");
  EXPECT_THAT(std::string(NameNearest(failure, job, 0.5, Evidence(4.0, kNone, kNone)).message()),
              HasSubstr("over full attention's, full attention finds none of 12 needles)"));
}

TEST(NameNearest, OfARecallThatNoZGivesTheRequestHasNone) {
  const absl::Status failure = MakeError(
      absl::StatusCode::kFailedPrecondition, "z_recall: wanted 1",
      {.reason = "TARGET_UNREACHABLE", .field = "z_recall", .metadata = {{"nearest", "0.9"}}});
  const absl::Status named = NameWithoutRecall(failure);
  EXPECT_EQ(named.message(), "z_recall: wanted 1; the nearest request: no z_recall");
  EXPECT_EQ(GetErrorDetail(named).field, "z_recall");
  EXPECT_EQ(GetErrorDetail(named).metadata.at("nearest"), "0.9");
  EXPECT_EQ(GetErrorDetail(named).metadata.at("nearest_request"), "no z_recall");
}

}  // namespace
}  // namespace eta::testing
