// Calibrate on the tiny model: what it chooses is what the solvers give for scores collected by
// hand, each target is met or refused, and nothing depends on what else the engine does.

#include "calibration/calibrate/calibrator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "calibration/calibrate/calibration_job.h"
#include "calibration/calibrate/collected_cells.h"
#include "calibration/calibrate/divergence_rows.h"
#include "calibration/calibrate/promises.h"
#include "calibration/calibrate/retrieval_windows.h"
#include "calibration/profiles/threshold_profile_of.h"
#include "calibration/solvers/divergence.h"
#include "calibration/solvers/frozen_threshold.h"
#include "calibration/solvers/sample_split.h"
#include "engine/base/error.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/pass_recorder.h"

namespace eta::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int32_t kTokens = 160;  // of a sequence: ten blocks

const TinyModel& Gated() {
  static const TinyModel model;
  return model;
}
const TinyModel& Plain() {
  static const TinyModel model({.has_predictor = false});
  return model;
}

Engine& OnGated() {
  static const auto& engine = *new std::unique_ptr<Engine>(Start(OptionsFor(Gated())));
  return *engine;
}
Engine& OnPlain() {
  static const auto& engine = *new std::unique_ptr<Engine>(Start(OptionsFor(Plain())));
  return *engine;
}

CalibrationJob Job(ProfileTargetKind kind, double value = 0.0) {
  CalibrationJob job = {.id = "job", .tenant = "tenant", .target = {kind, value}};
  job.labels["domain"] = "noise";
  job.allow_loss = true;  // of noise nothing is known
  job.sequence_tokens = kTokens;
  for (uint32_t i = 0; i < 4; ++i) job.samples.push_back(Prompt(kTokens, 10 + i));
  return job;
}
CalibrationJob MatchJob() {
  return Job(ProfileTargetKind::kMatchDynamic);
}

absl::StatusOr<CalibrationResult> RunJob(Engine& engine, const CalibrationJob& job) {
  return Calibrate(engine, job, {}, {});
}

SampleSplit SplitOf(const CalibrationJob& job) {
  return *SplitSamples(job.samples, {.sequence_tokens = kTokens,
                                     .min_tokens = kTokens,
                                     .beginning = {1},
                                     .held_out = job.held_out});
}

CollectedCells CollectByHand(Engine& engine, const std::vector<std::vector<int32_t>>& sequences,
                             const AttentionChoice& attention, bool second_half) {
  const ModelConfig& config = engine.info().config;
  CollectedCells collected =
      *CollectedCells::Create(config.num_layers, config.num_query_heads, ScoreBins());
  for (const std::vector<int32_t>& sequence : sequences) {
    const auto length = static_cast<int32_t>(sequence.size());
    const auto outcome = Measure(engine, {.id = "hand",
                                          .tokens = sequence,
                                          .attention = attention,
                                          .decode_from = length,
                                          .bins = ScoreBins(),
                                          .collect_from = second_half ? length / 2 : 0});
    EXPECT_EQ(outcome.status(), absl::OkStatus());
    EXPECT_EQ(collected.Add(outcome->cells, outcome->collected_rows), absl::OkStatus());
  }
  return collected;
}

AttentionChoice UnderProfile(const ProfileContent& content) {
  return {.mode = AttentionMode::kProfile, .profile = ThresholdProfileOf(content, "made", 1)};
}

// Of the second halves, as decode rows.
struct ByHand {
  double perplexity = 0.0;
  double head_density = 0.0;
  double union_density = 0.0;
  std::vector<int64_t> above;           // [L, HQ]
  std::vector<int64_t> above_admitted;  // [L, HQ]
};
ByHand MeasureByHand(Engine& engine, const std::vector<std::vector<int32_t>>& sequences,
                     const AttentionChoice& attention) {
  ByHand sums;
  double loss = 0.0;
  double losses = 0.0;
  for (const std::vector<int32_t>& sequence : sequences) {
    const auto half = static_cast<int32_t>(sequence.size()) / 2;
    const auto outcome = Measure(engine, {.id = "hand",
                                          .tokens = sequence,
                                          .attention = attention,
                                          .decode_from = half,
                                          .loss_from = half,
                                          .recall = true});
    EXPECT_EQ(outcome.status(), absl::OkStatus());
    for (const float l : outcome->losses) loss += l;
    losses += static_cast<double>(outcome->losses.size());
    sums.head_density += outcome->attention.head_density() / double(sequences.size());
    sums.union_density += outcome->attention.union_density() / double(sequences.size());
    sums.above.resize(outcome->above.size());
    sums.above_admitted.resize(outcome->above.size());
    for (size_t i = 0; i < outcome->above.size(); ++i) {
      sums.above[i] += outcome->above[i];
      sums.above_admitted[i] += outcome->above_admitted[i];
    }
  }
  sums.perplexity = std::exp(loss / losses);
  return sums;
}

TEST(Calibrate, MatchesEveryHeadsMeanGate) {
  Engine& engine = OnGated();
  const CalibrationJob job = MatchJob();
  const auto result = RunJob(engine, job).value();

  const SampleSplit split = SplitOf(job);
  const CollectedCells collected =
      CollectByHand(engine, split.calibration, {.mode = AttentionMode::kDynamic}, false);
  const auto solved = SolveFrozenThresholds(collected.histogram(), {.beta = 5.0}).value();
  const ProfileContent& content = result.content;
  ASSERT_THAT(content.thresholds, SizeIs(solved.size()));
  double soft_density = 0.0;
  for (size_t i = 0; i < solved.size(); ++i) {
    EXPECT_EQ(content.thresholds[i], static_cast<float>(solved[i].threshold)) << i;
    soft_density += solved[i].target / static_cast<double>(solved.size());
  }
  EXPECT_NEAR(content.reached.soft_density, soft_density, 1e-6);
  EXPECT_THAT(content.z_per_head, IsEmpty());
}

TEST(Calibrate, SaysWhatItMeasuredAndOnWhat) {
  Engine& engine = OnGated();
  const CalibrationJob job = MatchJob();
  const auto result = RunJob(engine, job).value();
  const ProfileContent& content = result.content;
  EXPECT_EQ(CheckProfileContent(content), absl::OkStatus());
  EXPECT_EQ(content.labels, job.labels);
  EXPECT_EQ(content.model_fingerprint, engine.info().model_fingerprint);
  EXPECT_EQ(content.tokenizer_fingerprint, engine.info().tokenizer_fingerprint);
  EXPECT_EQ(content.geometry,
            (ProfileGeometry{.layers = 2, .query_heads = 4, .block_size = 16, .sub_block = 4}));
  EXPECT_EQ(content.formats, (ProfileFormats{.index = OnGated().info().index,
                                             .kv_dtype = OnGated().info().kv_dtype,
                                             .weights = OnGated().info().weights}));
  EXPECT_EQ(content.settings.uniform_floor, true);
  EXPECT_EQ(content.settings.z, 1.5f);
  EXPECT_EQ(content.evidence.calibration_sequences, 3);
  EXPECT_EQ(content.evidence.calibration_tokens, 3 * kTokens);
  EXPECT_EQ(content.evidence.held_out_sequences, 1);
  EXPECT_EQ(content.evidence.held_out_tokens, kTokens);
  EXPECT_EQ(content.evidence.calibration_documents, 3);
  EXPECT_EQ(content.evidence.held_out_documents, 1);

  const SampleSplit split = SplitOf(job);
  const auto full = MeasureByHand(engine, split.held_out, {.mode = AttentionMode::kFull});
  const auto dynamic = MeasureByHand(engine, split.held_out, {.mode = AttentionMode::kDynamic});
  const auto frozen = MeasureByHand(engine, split.held_out, UnderProfile(content));
  // Here of decode rows, there of a prompt, whose products may be sums on AMX tiles.
  EXPECT_NEAR(content.evidence.perplexity_full, full.perplexity, 1e-4 * full.perplexity);
  EXPECT_DOUBLE_EQ(content.evidence.perplexity_dynamic.value(), dynamic.perplexity);
  EXPECT_DOUBLE_EQ(content.evidence.perplexity_frozen, frozen.perplexity);
  EXPECT_DOUBLE_EQ(content.evidence.head_density, frozen.head_density);
  EXPECT_DOUBLE_EQ(content.evidence.union_density, frozen.union_density);
  EXPECT_DOUBLE_EQ(result.dynamic->union_density, dynamic.union_density);
  EXPECT_EQ(content.evidence.dynamic_head_density, result.dynamic->head_density);
  EXPECT_EQ(content.evidence.dynamic_union_density, result.dynamic->union_density);
  EXPECT_EQ(content.evidence.dynamic_recall, result.dynamic->recall);
  EXPECT_EQ(result.full.union_density, 1.0);
  const auto reached = MeasureByHand(engine, split.calibration, UnderProfile(content));
  EXPECT_NEAR(content.reached.union_density, reached.union_density, 1e-12);
  EXPECT_NEAR(content.reached.head_density, reached.head_density, 1e-12);
}

TEST(Calibrate, OperatingPointIsTheProfiles) {
  CalibrationJob job = MatchJob();
  job.settings.offset = 0.75f;
  job.settings.z = 2.5f;
  job.settings.uniform_floor = false;
  const auto result = RunJob(OnGated(), job).value();
  const ProfileContent& content = result.content;
  EXPECT_EQ(content.settings.offset, 0.75f);
  EXPECT_EQ(content.settings.z, 2.5f);
  EXPECT_EQ(content.settings.uniform_floor, false);
  const CollectedCells collected =
      CollectByHand(OnGated(), SplitOf(job).calibration,
                    {.mode = AttentionMode::kDynamic, .settings = {.offset = 0.75f}}, false);
  const auto solved = SolveFrozenThresholds(collected.histogram(), {.beta = 5.0, .offset = 0.75});
  ASSERT_TRUE(solved.ok()) << solved.status();
  for (size_t i = 0; i < solved->size(); ++i) {
    EXPECT_EQ(content.thresholds[i], static_cast<float>((*solved)[i].threshold)) << i;
  }
}

TEST(Calibrate, MeetsDensities) {
  for (const auto& [kind, value] : {std::pair{ProfileTargetKind::kUnionDensity, 0.8},
                                    std::pair{ProfileTargetKind::kUnionDensity, 0.5},
                                    std::pair{ProfileTargetKind::kHeadDensity, 0.45},
                                    std::pair{ProfileTargetKind::kUnionDensity, 1.0}}) {
    const CalibrationJob job = Job(kind, value);
    const auto result = RunJob(OnGated(), job).value();
    const auto measured =
        MeasureByHand(OnGated(), SplitOf(job).calibration, UnderProfile(result.content));
    const bool heads = kind == ProfileTargetKind::kHeadDensity;
    EXPECT_NEAR(heads ? measured.head_density : measured.union_density, value, kDensityTolerance);
    EXPECT_NEAR(heads ? result.content.reached.head_density : result.content.reached.union_density,
                value, kDensityTolerance);
    EXPECT_EQ(result.content.target, job.target);
  }
}

TEST(Calibrate, RefusesADensityBelowThePinnedBlocks) {
  const auto result = RunJob(OnGated(), Job(ProfileTargetKind::kUnionDensity, 0.05));
  ASSERT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
  const ErrorDetail detail = GetErrorDetail(result.status());
  EXPECT_EQ(detail.reason, "TARGET_UNREACHABLE");
  EXPECT_EQ(detail.field, "target.union_density");
  // Two pinned blocks of 16 and half a tail, of 80 to 160 keys.
  EXPECT_NEAR(std::stod(detail.metadata.at("nearest")), 0.34, 0.05);
}

// Enough documents for a verdict on a perplexity: 16 held out, of 79 tokens each.
CalibrationJob Judged(ProfileTargetKind kind, double value) {
  CalibrationJob job = Job(kind, value);
  for (uint32_t i = 4; i < 64; ++i) job.samples.push_back(Prompt(kTokens, 10 + i));
  return job;
}

TEST(Calibrate, KeepsTheHeldOutPerplexityWithinItsBound) {
  for (const double percent : {0.0, 0.5}) {
    const auto result =
        RunJob(OnGated(), Judged(ProfileTargetKind::kMaxPerplexityIncrease, percent));
    if (!result.ok()) {
      // Noise may allow none; then it says what it could.
      EXPECT_EQ(GetErrorDetail(result.status()).reason, "TARGET_UNREACHABLE");
      EXPECT_GT(std::stod(GetErrorDetail(result.status()).metadata.at("nearest")), percent);
      continue;
    }
    const ProfileEvidence& evidence = result->content.evidence;
    EXPECT_LE(evidence.perplexity_frozen, evidence.perplexity_full * (1.0 + percent / 100.0));
  }
  // A bound that nothing breaks: as sparse as the search looks, which is the pinned blocks alone.
  const auto sparsest =
      RunJob(OnGated(), Judged(ProfileTargetKind::kMaxPerplexityIncrease, 1000.0)).value();
  EXPECT_LT(sparsest.content.reached.union_density, 0.4);
}

TEST(PrepareJob, SequencesAndNeedlesBeginAsPromptsDo) {
  const CalibrationJob job = MatchJob();
  EngineInfo info = OnGated().info();
  ASSERT_EQ(info.config.bos_id, 1) << "what config.json says does not count";
  for (const std::vector<int32_t>& beginning :
       {std::vector<int32_t>{}, std::vector<int32_t>{7001, 7002}}) {
    info.beginning = beginning;
    const auto prepared = PrepareJob(info, OnGated().limits(), job).value();
    ASSERT_FALSE(prepared.split.calibration.empty());
    for (const auto& sequence : prepared.split.calibration) {
      ASSERT_GE(sequence.size(), beginning.size());
      EXPECT_TRUE(std::equal(beginning.begin(), beginning.end(), sequence.begin()));
      if (beginning.empty()) {
        EXPECT_NE(std::find(job.samples.begin(), job.samples.end(), sequence), job.samples.end());
      }
    }
  }
}

TEST(Calibrate, WhatIsHeldOutChoosesNothing) {
  const CalibrationJob job = Judged(ProfileTargetKind::kMaxPerplexityIncrease, 20.0);
  const SampleSplit split = *SplitSamples(
      job.samples,
      {.sequence_tokens = kTokens, .min_tokens = kTokens, .beginning = {1}, .choice = true});
  const auto result = RunJob(OnGated(), job).value();
  const ProfileEvidence& evidence = result.content.evidence;
  EXPECT_EQ(evidence.calibration_documents, 32);
  EXPECT_EQ(evidence.choice_documents, 16);
  EXPECT_EQ(evidence.held_out_documents, 16);
  EXPECT_EQ(evidence.choice_sequences, 16);
  EXPECT_EQ(evidence.choice_tokens, 16 * kTokens);
  ASSERT_TRUE(evidence.increase_over_full.has_value());
  const double increase = (evidence.perplexity_frozen / evidence.perplexity_full - 1.0) * 100.0;
  EXPECT_LT(evidence.increase_over_full->low, increase);
  EXPECT_GT(evidence.increase_over_full->high, increase);
  EXPECT_TRUE(evidence.increase_over_dynamic.has_value());

  CalibrationJob other = job;
  uint32_t seed = 1000;
  for (auto& sample : other.samples) {
    if (std::find(split.held_out.begin(), split.held_out.end(), sample) != split.held_out.end()) {
      sample = Prompt(kTokens, seed++);
    }
  }
  EXPECT_EQ(seed, 1016u);
  const auto otherwise = RunJob(OnGated(), other).value();
  EXPECT_EQ(otherwise.content.thresholds, result.content.thresholds);
  EXPECT_EQ(otherwise.content.reached, result.content.reached);
  EXPECT_NE(otherwise.content.evidence, result.content.evidence);
}

TEST(Calibrate, ReadsAsMuchAsDynamicThresholds) {
  const CalibrationJob job = Judged(ProfileTargetKind::kDynamicUnionDensity, 1000.0);
  const auto result = RunJob(OnGated(), job).value();
  const SampleSplit split = SplitOf(job);
  std::vector<std::vector<int32_t>> chosen_on;
  for (const auto& sequence : SpreadOver(split.calibration, 16)) {
    chosen_on.emplace_back(sequence.begin(), sequence.end());
  }
  const auto dynamic = MeasureByHand(OnGated(), chosen_on, {.mode = AttentionMode::kDynamic});
  EXPECT_NEAR(result.content.reached.union_density, dynamic.union_density, kDensityTolerance);
  EXPECT_EQ(result.content.target, job.target);
  EXPECT_EQ(result.content.evidence.choice_documents, 0);
  EXPECT_EQ(result.content.evidence.held_out_documents, 16);
}

// What a failing calibration says would pass does pass.
void ExpectThatTheNearestPasses(Engine& engine, CalibrationJob job) {
  const auto failed = RunJob(engine, job);
  ASSERT_EQ(failed.status().code(), absl::StatusCode::kFailedPrecondition) << failed.status();
  const std::string request = GetErrorDetail(failed.status()).metadata.at("nearest_request");
  constexpr char kDensity[] = "union_density=";
  ASSERT_EQ(request.find(kDensity), 0u) << request;
  job.target = {ProfileTargetKind::kUnionDensity, std::stod(request.substr(sizeof(kDensity) - 1))};
  if (request.find("no min_retrieval") != std::string::npos) job.min_retrieval.reset();
  if (request.find("allow_loss=true") != std::string::npos) job.allow_loss = true;
  const auto passed = RunJob(engine, job);
  EXPECT_TRUE(passed.ok()) << request << ": " << passed.status();
}

// bad input: Calibrate | a target that cannot be reached on this data | FAILED_PRECONDITION,
//   TARGET_UNREACHABLE with the nearest that passes; nothing is stored |
//   ProfileProcessTest.ATargetThatCannotBeMetSaysWhatCanAndStoresNothing
TEST(Calibrate, AFailureNamesARequestThatPasses) {
  ExpectThatTheNearestPasses(OnGated(), Job(ProfileTargetKind::kUnionDensity, 0.05));
  CalibrationJob bound = Judged(ProfileTargetKind::kUnionDensity, 0.05);
  bound.allow_loss = false;
  ExpectThatTheNearestPasses(OnGated(), bound);
  ExpectThatTheNearestPasses(OnPlain(), Job(ProfileTargetKind::kHeadDensity, 0.05));
  CalibrationJob retrieval = Job(ProfileTargetKind::kUnionDensity, 0.6);
  retrieval.min_retrieval = 1.0;  // noise finds none
  ExpectThatTheNearestPasses(OnGated(), retrieval);
  // Of a target that has documents of its own to choose on, too.
  CalibrationJob increase = Judged(ProfileTargetKind::kMaxPerplexityIncrease, 0.5);
  increase.min_retrieval = 1.0;
  ExpectThatTheNearestPasses(OnGated(), increase);
}

// Though what was reached may be the densest there is.
TEST(Calibrate, TheNearestRequestIsWithinTheToleranceOfWhatWasReached) {
  const auto failed = RunJob(OnGated(), Job(ProfileTargetKind::kUnionDensity, 0.05));
  const auto metadata = GetErrorDetail(failed.status()).metadata;
  const double named = std::stod(metadata.at("nearest_request").substr(14));
  const double reached = std::stod(metadata.at("nearest"));
  EXPECT_LE(named - reached, kDensityTolerance);
  EXPECT_GT(named - reached, kDensityTolerance - 2e-5) << "so the search ends no sparser";
}

// The held-out documents of noise seldom keep a bound of nothing at the density of dynamic
// thresholds.
TEST(Calibrate, TheTargetOfDynamicThresholdsTakesTheNearestDenserProfile) {
  int taken = 0;
  for (const double percent : {0.0, 1.0}) {
    const CalibrationJob job = Judged(ProfileTargetKind::kDynamicUnionDensity, percent);
    const auto result = RunJob(OnGated(), job);
    if (!result.ok()) {
      ExpectThatTheNearestPasses(OnGated(), job);
      continue;
    }
    ++taken;
    const ProfileContent& content = result->content;
    const ProfileEvidence& evidence = content.evidence;
    EXPECT_LE(evidence.perplexity_frozen, *evidence.perplexity_dynamic * (1.0 + percent / 100.0));
    EXPECT_EQ(content.target, job.target);
    const auto measured = MeasureByHand(OnGated(), SplitOf(job).held_out, UnderProfile(content));
    EXPECT_DOUBLE_EQ(evidence.perplexity_frozen, measured.perplexity);
    EXPECT_DOUBLE_EQ(evidence.union_density, measured.union_density);
  }
  EXPECT_EQ(taken, 1) << "1 %, by reading more";
}

// bad input: Calibrate | one document in however many samples, equal ones, too few tokens to judge
//   a perplexity (with `allow_loss` a target that bounds none is stored unverified) |
//   INVALID_ARGUMENT, field `samples`, with the least and what there is |
//   EtactlCalibrateProcessTest.SaysWhatIsRefused
TEST(Calibrate, AVerdictNeedsEnoughTokens) {
  for (const ProfileTargetKind kind :
       {ProfileTargetKind::kMaxPerplexityIncrease, ProfileTargetKind::kDynamicUnionDensity}) {
    CalibrationJob job = Judged(kind, 1000.0);
    job.samples.resize(40);  // 10 documents of 79 tokens
    const auto result = RunJob(OnGated(), job);
    EXPECT_THAT(result.status(), FailsOn(absl::StatusCode::kInvalidArgument, "samples"));
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("at least 1024 tokens"));
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("have 790"));
  }
  for (const auto& [kind, value] : {std::pair{ProfileTargetKind::kUnionDensity, 0.6},
                                    std::pair{ProfileTargetKind::kHeadDensity, 0.5},
                                    std::pair{ProfileTargetKind::kMatchDynamic, 0.0}}) {
    CalibrationJob job = Job(kind, value);
    job.allow_loss = false;
    const absl::Status refused = RunJob(OnGated(), job).status();
    EXPECT_THAT(refused, FailsOn(absl::StatusCode::kInvalidArgument, "samples"));
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("at least 1024 tokens"), HasSubstr("have 79;"),
                      HasSubstr("unverified (allow_loss)")));
  }
  const auto allowed = RunJob(OnGated(), Job(ProfileTargetKind::kUnionDensity, 0.6)).value();
  EXPECT_TRUE(Unverified(allowed.content.evidence));
  CalibrationJob enough = Judged(ProfileTargetKind::kUnionDensity, 0.6);
  EXPECT_FALSE(Unverified(RunJob(OnGated(), enough).value().content.evidence));
}

TEST(Calibrate, EqualDocumentsAreLeftOutAndCounted) {
  CalibrationJob job = MatchJob();
  const auto once = RunJob(OnGated(), job);
  job.samples.push_back(job.samples[0]);
  job.samples.push_back(job.samples[2]);
  job.equal_documents = 3;
  const auto twice = RunJob(OnGated(), job);
  ASSERT_TRUE(once.ok()) << once.status();
  ASSERT_TRUE(twice.ok()) << twice.status();
  EXPECT_EQ(once->content.evidence.equal_documents, 0);
  EXPECT_EQ(twice->content.evidence.equal_documents, 5);
  EXPECT_EQ(twice->content.evidence.calibration_sequences, 3);
  EXPECT_EQ(twice->content.thresholds, once->content.thresholds);
}

TEST(Calibrate, TheDefaultTargetIsWhatTheModelDoesByItself) {
  EXPECT_EQ(DefaultTarget(OnGated().info().config),
            (ProfileTarget{ProfileTargetKind::kDynamicUnionDensity, 0.5}));
  EXPECT_EQ(DefaultTarget(OnPlain().info().config),
            (ProfileTarget{ProfileTargetKind::kMaxPerplexityIncrease, 0.5}));
}

TEST(Calibrate, ZPerHeadKeepsEveryHeadsRecall) {
  for (const auto& target :
       {ProfileTarget{}, ProfileTarget{ProfileTargetKind::kUnionDensity, 0.85}}) {
    CalibrationJob job = Job(target.kind, target.value);
    job.z_recall = 0.9;
    const auto result = RunJob(OnGated(), job).value();
    const ProfileContent& content = result.content;
    ASSERT_THAT(content.z_per_head, SizeIs(8));
    const auto measured = MeasureByHand(OnGated(), SplitOf(job).calibration, UnderProfile(content));
    if (target.kind != ProfileTargetKind::kMatchDynamic) {
      EXPECT_NEAR(measured.union_density, 0.85, kDensityTolerance);
      // The last shift follows the last z, and moves it by little.
      const auto sum = [](const std::vector<int64_t>& keys) {
        return static_cast<double>(std::accumulate(keys.begin(), keys.end(), int64_t{0}));
      };
      EXPECT_NEAR(sum(measured.above_admitted) / sum(measured.above), 0.9, 0.08);
      continue;
    }
    for (size_t i = 0; i < 8; ++i) {
      if (measured.above[i] == 0) continue;
      // z counted prompt rows, whose keys were computed without pruning.
      EXPECT_GE(double(measured.above_admitted[i]) / double(measured.above[i]), 0.88) << i;
    }
    // The very numbers of a collection under these thresholds.
    ProfileContent without = content;
    without.z_per_head.clear();
    const auto solved = SolveHeadZ(
        CollectByHand(OnGated(), SplitOf(job).calibration, UnderProfile(without), true).head_z(),
        0.9);
    ASSERT_TRUE(solved.ok()) << solved.status();
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(content.z_per_head[i], (*solved)[i].z) << i;
  }
}

TEST(Calibrate, SameTwiceAndBesideTraffic) {
  CalibrationJob job = Job(ProfileTargetKind::kUnionDensity, 0.6);
  job.z_recall = 0.9;
  const auto alone = RunJob(OnGated(), job).value();
  EXPECT_EQ(alone.content, RunJob(OnGated(), job).value().content);

  std::vector<std::shared_ptr<Recorder>> traffic;
  for (uint32_t i = 0; i < 6; ++i) {
    traffic.push_back(Submit(OnGated(), Greedy(Prompt(30 + 20 * int32_t(i), i), 60)));
  }
  const auto beside = RunJob(OnGated(), job);
  for (const auto& request : traffic) request->Wait();
  ASSERT_TRUE(beside.ok()) << beside.status();
  EXPECT_EQ(alone.content, beside->content);
}

TEST(Calibrate, ReferenceBackendAgrees) {
  const auto engine = Start(ReferenceOptionsFor(Gated()));
  CalibrationJob job = MatchJob();
  job.samples.resize(2);
  const auto judge = RunJob(*engine, job);
  const auto result = RunJob(OnGated(), job);
  ASSERT_TRUE(judge.ok()) << judge.status();
  ASSERT_TRUE(result.ok()) << result.status();
  for (size_t i = 0; i < result->content.thresholds.size(); ++i) {
    EXPECT_NEAR(result->content.thresholds[i], judge->content.thresholds[i], 1e-3) << i;
  }
  EXPECT_NEAR(result->content.evidence.perplexity_frozen, judge->content.evidence.perplexity_frozen,
              1e-3 * judge->content.evidence.perplexity_frozen);
}

TEST(Calibrate, PlainModelGetsOneRelativeThreshold) {
  for (const auto& [kind, value] : {std::pair{ProfileTargetKind::kUnionDensity, 0.6},
                                    std::pair{ProfileTargetKind::kHeadDensity, 0.5}}) {
    const CalibrationJob job = Job(kind, value);
    const auto result = RunJob(OnPlain(), job).value();
    const ProfileContent& content = result.content;
    EXPECT_EQ(CheckProfileContent(content), absl::OkStatus());
    EXPECT_TRUE(content.relative_c.has_value());
    EXPECT_THAT(content.thresholds, IsEmpty());
    EXPECT_EQ(content.settings.uniform_floor, false);
    EXPECT_EQ(content.settings.z, 0.0f);
    EXPECT_EQ(content.settings.sink_blocks, 1);
    EXPECT_EQ(content.settings.shared_reads, true);
    EXPECT_EQ(content.reached.soft_density, 0.0);
    EXPECT_FALSE(content.evidence.perplexity_dynamic);
    EXPECT_FALSE(result.dynamic);
    const auto measured = MeasureByHand(OnPlain(), SplitOf(job).calibration, UnderProfile(content));
    const bool heads = kind == ProfileTargetKind::kHeadDensity;
    EXPECT_NEAR(heads ? measured.head_density : measured.union_density, value, kDensityTolerance);
  }
}

// There are no scores to collect, so that all documents that are not held out choose.
TEST(Calibrate, PlainModelIsSearchedAtOnce) {
  std::vector<CalibrationPhase> phases;
  const CalibrationObserver observer = [&](const CalibrationProgress& progress) {
    if (phases.empty() || phases.back() != progress.phase) phases.push_back(progress.phase);
  };
  CalibrationJob job = Judged(ProfileTargetKind::kMaxPerplexityIncrease, 20.0);
  job.samples.resize(56);
  const auto result = Calibrate(OnPlain(), job, observer, {}).value();
  EXPECT_THAT(phases, ElementsAre(CalibrationPhase::kSearch, CalibrationPhase::kVerify));
  const ProfileEvidence& evidence = result.content.evidence;
  EXPECT_EQ(evidence.calibration_documents, 42);
  EXPECT_EQ(evidence.choice_documents, 0);
  EXPECT_EQ(evidence.held_out_documents, 14);
  EXPECT_LE(evidence.perplexity_frozen, evidence.perplexity_full * 1.2);
}

// Of the held-out documents, whose rows are few enough to be measured all.
TEST(Calibrate, APlainModelsEvidenceHasTheDivergenceBesideThePerplexity) {
  const CalibrationJob job = Job(ProfileTargetKind::kUnionDensity, 0.6);
  const auto result = RunJob(OnPlain(), job).value();
  const std::optional<Divergence>& divergence = result.content.evidence.divergence;
  ASSERT_TRUE(divergence.has_value());
  const std::vector<int32_t> sequence = SplitOf(job).held_out.at(0);
  Pass pass = {.id = "hand", .tokens = sequence, .decode_from = kTokens, .loss_from = kTokens / 2};
  for (int32_t row = kTokens / 2; row + 1 < kTokens; ++row) pass.logit_rows.push_back(row);
  pass.attention = {.mode = AttentionMode::kFull};
  const PassOutcome full = Measure(OnPlain(), pass).value();
  pass.attention = UnderProfile(result.content);
  pass.decode_from = kTokens / 2;
  const PassOutcome frozen = Measure(OnPlain(), pass).value();
  const auto width = static_cast<size_t>(OnPlain().info().config.vocab_size);
  double nats = 0.0;
  for (size_t row = 0; row < pass.logit_rows.size(); ++row) {
    nats += KlDivergence(std::span(full.logits).subspan(row * width, width),
                         std::span(frozen.logits).subspan(row * width, width));
  }
  nats /= static_cast<double>(pass.logit_rows.size());
  EXPECT_EQ(divergence->rows, std::ssize(pass.logit_rows));
  EXPECT_GT(divergence->nats, 0.0);
  EXPECT_NEAR(divergence->nats, nats, 1e-3 * nats);
  EXPECT_FALSE(RunJob(OnGated(), job).value().content.evidence.divergence.has_value());
}

TEST(Calibrate, AModelLacksAnIndexMetricThatWouldServeIt) {
  EngineInfo info = OnPlain().info();
  EXPECT_TRUE(LacksIndexMetric(info));
  info.index_metric = true;
  EXPECT_FALSE(LacksIndexMetric(info));
  EXPECT_FALSE(LacksIndexMetric(OnGated().info())) << "its thresholds are bounds of keys";
}

// Noise may have less perplexity where blocks are left out; its divergence grows all the same.
TEST(Calibrate, APlainModelsBoundIsOfTheDivergenceToo) {
  double densest = 1.01;
  for (const double percent : {5.0, 20.0}) {
    const auto result =
        RunJob(OnPlain(), Judged(ProfileTargetKind::kMaxPerplexityIncrease, percent));
    ASSERT_TRUE(result.ok()) << result.status();
    const ProfileEvidence& evidence = result->content.evidence;
    ASSERT_TRUE(evidence.divergence.has_value());
    EXPECT_LE(std::expm1(evidence.divergence->nats) * 100.0, percent);
    EXPECT_EQ(evidence.divergence->rows, kMaxDivergenceRows) << "of 1264 rows";
    EXPECT_LE(evidence.union_density, densest);
    densest = evidence.union_density;
  }
}

TEST(Calibrate, DefaultsOfRequestsAreTheJobsOrTheModels) {
  CalibrationJob job = Job(ProfileTargetKind::kUnionDensity, 0.7);
  job.settings.sink_blocks = 2;
  job.settings.shared_reads = false;
  job.settings.min_mass = 0.75f;
  job.settings.offset = 0.5f;
  const auto plain = RunJob(OnPlain(), job).value();
  EXPECT_EQ(plain.content.settings.sink_blocks, 2);
  EXPECT_EQ(plain.content.settings.shared_reads, false);
  EXPECT_EQ(plain.content.settings.min_mass, 0.75f);
  EXPECT_EQ(plain.content.settings.offset, 0.5f);
  job.settings.temper_special = true;
  job.settings.sink_blocks = 1;
  job.settings.shared_reads = true;
  const auto gated = RunJob(OnGated(), job).value();
  EXPECT_EQ(gated.content.settings.sink_blocks, 1);
  EXPECT_EQ(gated.content.settings.shared_reads, true);
  EXPECT_EQ(gated.content.settings.temper_special, true);
  const auto measured =
      MeasureByHand(OnGated(), SplitOf(job).calibration, UnderProfile(gated.content));
  EXPECT_NEAR(measured.union_density, 0.7, kDensityTolerance);
  const auto usual = RunJob(OnGated(), MatchJob()).value();
  EXPECT_EQ(usual.content.settings.sink_blocks, 0);
  EXPECT_EQ(usual.content.settings.shared_reads, false);
  EXPECT_EQ(usual.content.settings.temper_special, false);
  EXPECT_EQ(usual.content.settings.min_mass, std::nullopt);
}

TEST(Calibrate, KeepsTheMassThatIsAskedFor) {
  double densest = 1.01;
  for (const double least : {0.99, 0.8}) {
    CalibrationJob job = Judged(ProfileTargetKind::kRetainedMass, least);
    job.samples.resize(56);
    const auto result = RunJob(OnPlain(), job).value();
    const ProfileEvidence& evidence = result.content.evidence;
    EXPECT_GE(evidence.retained_mass, least);
    EXPECT_LE(evidence.retained_mass_p1, evidence.retained_mass);
    EXPECT_EQ(result.content.target, job.target);
    EXPECT_EQ(evidence.choice_documents, 0);
    EXPECT_LT(evidence.union_density, densest);
    densest = evidence.union_density;
  }
}

TEST(Calibrate, EveryProfileSaysWhatItKeeps) {
  for (Engine* engine : {&OnGated(), &OnPlain()}) {
    const auto result = RunJob(*engine, Job(ProfileTargetKind::kUnionDensity, 0.6)).value();
    const ProfileEvidence& evidence = result.content.evidence;
    ASSERT_TRUE(evidence.retained_mass.has_value());
    EXPECT_GT(*evidence.retained_mass, 0.3);
    EXPECT_LT(*evidence.retained_mass, 1.0);
    EXPECT_LT(evidence.retained_mass_p1, evidence.retained_mass);
    ASSERT_TRUE(result.frozen.mass.has_value());
    EXPECT_EQ(result.frozen.mass->rows.size(), static_cast<size_t>(kTokens / 2));
    EXPECT_FALSE(result.full.mass.has_value());
  }
}

TEST(Calibrate, EveryProfileSaysWhatItFinds) {
  for (Engine* engine : {&OnGated(), &OnPlain()}) {
    CalibrationJob job = Job(ProfileTargetKind::kUnionDensity, 0.9);
    job.min_retrieval = 1.0;
    const auto refused = RunJob(*engine, job);
    // A model of noise may find none of them; then nothing can be promised.
    if (!refused.ok()) {
      EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_EQ(GetErrorDetail(refused.status()).field, "min_retrieval");
    }
    job.min_retrieval.reset();
    const auto result = RunJob(*engine, job).value();
    for (const auto& hits :
         {result.content.evidence.single_needles, result.content.evidence.multi_needles}) {
      ASSERT_TRUE(hits.has_value());
      EXPECT_EQ(hits->asked, kRetrievalDepths);
      EXPECT_LE(hits->kept, std::min(hits->full, hits->frozen));
    }
  }
}

TEST(Calibrate, ATextWithNoPlaceForNeedlesPromisesNothing) {
  CalibrationJob job = Job(ProfileTargetKind::kUnionDensity, 0.9);
  for (size_t i = 0; i < job.samples.size(); ++i) {
    for (size_t t = 0; t < job.samples[i].size(); ++t) {
      job.samples[i][t] = static_cast<int32_t>(100 + (t * (i + 1)) % 7);
    }
  }
  EXPECT_FALSE(RunJob(OnGated(), job).value().content.evidence.single_needles.has_value());
  job.min_retrieval = 0.95;
  const auto refused = RunJob(OnGated(), job);
  EXPECT_THAT(refused.status(), FailsOn(absl::StatusCode::kInvalidArgument, "samples"));
}

// bad input: Calibrate | `min_retrieval` with samples too short, or of too few tokens, to hide
//   needles in | INVALID_ARGUMENT, field `samples`, before any work
TEST(Calibrate, SequencesTooShortForNeedlesPromiseNothing) {
  CalibrationJob job = Job(ProfileTargetKind::kUnionDensity, 0.9);
  job.sequence_tokens = kMinSequenceBlocks * 16;
  job.min_retrieval = 0.95;
  const auto refused = RunJob(OnGated(), job);
  EXPECT_THAT(refused.status(), FailsOn(absl::StatusCode::kInvalidArgument, "samples"));
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("at least 122 tokens, and the longest has 64"));
  job.min_retrieval.reset();
  EXPECT_FALSE(RunJob(OnGated(), job).value().content.evidence.multi_needles.has_value());
}

// However long the sequences are that thresholds are chosen on.
TEST(Calibrate, NeedlesAreHiddenInWindowsOfTheLengthThatIsHeldOut) {
  CalibrationJob job = MatchJob();
  job.sequence_tokens = 2 * kTokens;
  job.samples = {Prompt(2 * kTokens, 10), Prompt(kTokens, 11)};
  PreparedJob prepared = PrepareJob(OnGated().info(), OnGated().limits(), job).value();
  ASSERT_THAT(prepared.split.calibration[0], SizeIs(2 * kTokens));
  ASSERT_THAT(prepared.split.held_out, ElementsAre(SizeIs(kTokens)));
  ASSERT_EQ(MakeNeedles(OnGated(), job, prepared), absl::OkStatus());
  ASSERT_THAT(prepared.needles, SizeIs(2 * kRetrievalDepths));
  for (const NeedleWindow& window : prepared.needles) EXPECT_THAT(window.tokens, SizeIs(kTokens));
}

// bad input: Calibrate | a target or setting of models that do, or do not, predict thresholds |
//   FAILED_PRECONDITION, UNSUPPORTED_BY_MODEL, before any work |
//   BadProfileTest.CalibrationsOfWhatTheModelDoesNotDoCostNothing
TEST(Calibrate, EachKindOfThresholdsTakesItsOwn) {
  const auto field = [](Engine& engine, auto change) {
    CalibrationJob job = Job(ProfileTargetKind::kUnionDensity, 0.6);
    change(job);
    const absl::Status status = RunJob(engine, job).status();
    EXPECT_THAT(status, FailsFor(absl::StatusCode::kFailedPrecondition, "UNSUPPORTED_BY_MODEL"));
    return GetErrorDetail(status).field;
  };
  using J = CalibrationJob;
  EXPECT_EQ(field(OnPlain(), [](J& job) { job.z_recall = 0.9; }), "z_recall");
  EXPECT_EQ(field(OnPlain(), [](J& job) { job.settings.z = 1.5f; }), "z");
  EXPECT_EQ(field(OnPlain(), [](J& job) { job.settings.temper_special = true; }), "special_keys");
  EXPECT_EQ(field(OnGated(),
                  [](J& job) {
                    job.target = {ProfileTargetKind::kRetainedMass, 0.95};
                  }),
            "target.retained_mass");
  EngineOptions options = OptionsFor(Plain());
  options.index = IndexKind::kMoment;
  const auto moment = Start(options);
  EXPECT_EQ(field(*moment, [](J&) {}), "model");
}

TEST(Calibrate, PlainModelHasNothingToMatchAndNoFloor) {
  const auto match = RunJob(OnPlain(), MatchJob());
  EXPECT_EQ(match.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetErrorDetail(match.status()).reason, "UNSUPPORTED_BY_MODEL");
  const auto dynamic = RunJob(OnPlain(), Judged(ProfileTargetKind::kDynamicUnionDensity, 0.5));
  EXPECT_EQ(dynamic.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetErrorDetail(dynamic.status()).reason, "UNSUPPORTED_BY_MODEL");
  CalibrationJob job = Job(ProfileTargetKind::kUnionDensity, 0.6);
  job.settings.uniform_floor = true;
  const auto floor = RunJob(OnPlain(), job);
  EXPECT_EQ(GetErrorDetail(floor.status()).reason, "UNSUPPORTED_BY_MODEL");
}

TEST(Calibrate, StopsInAnyPhaseAndLeavesNoPass) {
  for (const CalibrationPhase phase : {CalibrationPhase::kCollect, CalibrationPhase::kSolve,
                                       CalibrationPhase::kSearch, CalibrationPhase::kVerify}) {
    std::stop_source stop;
    const CalibrationObserver stop_at = [&](const CalibrationProgress& progress) {
      if (progress.phase == phase) stop.request_stop();
    };
    const auto result =
        Calibrate(OnGated(), Job(ProfileTargetKind::kUnionDensity, 0.6), stop_at, stop.get_token());
    EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
    // The snapshot follows within a step.
    EngineSnapshot snapshot = OnGated().Snapshot();
    while (snapshot.passes_running + snapshot.passes_waiting > 0) snapshot = OnGated().Snapshot();
  }
}

TEST(Calibrate, TellsItsPhasesInOrder) {
  std::vector<CalibrationPhase> phases;
  const CalibrationObserver observer = [&](const CalibrationProgress& progress) {
    EXPECT_LE(progress.sequences_done, progress.sequences_total);
    EXPECT_GE(progress.seconds_left, 0.0);
    if (phases.empty() || phases.back() != progress.phase) phases.push_back(progress.phase);
  };
  const auto result =
      Calibrate(OnGated(), Job(ProfileTargetKind::kUnionDensity, 0.6), observer, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(phases, ElementsAre(CalibrationPhase::kCollect, CalibrationPhase::kSolve,
                                  CalibrationPhase::kSearch, CalibrationPhase::kVerify));
}

TEST(Calibrate, RefusesBadInputByItsName) {
  struct Case {
    const char* field;
    std::function<void(CalibrationJob&)> spoil;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Case> cases = {
      {"samples", [](CalibrationJob& job) { job.samples.clear(); }},
      {"samples", [](CalibrationJob& job) { job.samples.resize(1); }},
      {"samples",
       [](CalibrationJob& job) {
         job.samples = {{}, {1, 2, 3}};
       }},
      {"samples",
       [](CalibrationJob& job) {
         job.samples.assign(9, std::vector<int32_t>(kMaxCalibrationTokens / 8, 5));
       }},
      {"samples",
       [](CalibrationJob& job) {
         job.samples = {Prompt(8 * kTokens, 3)};  // one document, however long
       }},
      {"documents",
       [](CalibrationJob& job) {
         job.documents = {1, 2, 3};
       }},
      {"samples[1].token_ids.ids", [](CalibrationJob& job) { job.samples[1][7] = 8192; }},
      {"samples[0].token_ids.ids", [](CalibrationJob& job) { job.samples[0][7] = -1; }},
      {"id", [](CalibrationJob& job) { job.id = ""; }},
      {"held_out", [](CalibrationJob& job) { job.held_out = 0.0; }},
      {"held_out", [nan](CalibrationJob& job) { job.held_out = nan; }},
      {"held_out", [](CalibrationJob& job) { job.held_out = 0.95; }},
      {"min_retrieval", [](CalibrationJob& job) { job.min_retrieval = 0.0; }},
      {"min_retrieval", [nan](CalibrationJob& job) { job.min_retrieval = nan; }},
      {"min_mass", [](CalibrationJob& job) { job.settings.min_mass = 1.5f; }},
      {"sink_blocks", [](CalibrationJob& job) { job.settings.sink_blocks = -1; }},
      {"z_recall", [](CalibrationJob& job) { job.z_recall = 1.5; }},
      {"z_recall", [nan](CalibrationJob& job) { job.z_recall = nan; }},
      {"z", [](CalibrationJob& job) { job.settings.z = 17.0f; }},
      {"z", [nan](CalibrationJob& job) { job.settings.z = static_cast<float>(nan); }},
      {"offset", [](CalibrationJob& job) { job.settings.offset = -101.0f; }},
      {"target.value", [](CalibrationJob& job) { job.target.value = 0.3; }},
      {"target.value",
       [](CalibrationJob& job) {
         job.target = {ProfileTargetKind::kUnionDensity, 0.0};
       }},
      {"target.value",
       [nan](CalibrationJob& job) {
         job.target = {ProfileTargetKind::kHeadDensity, nan};
       }},
      {"target.value",
       [](CalibrationJob& job) {
         job.target = {ProfileTargetKind::kMaxPerplexityIncrease, -1.0};
       }},
      {"target.value",
       [](CalibrationJob& job) {
         job.target = {ProfileTargetKind::kDynamicUnionDensity, 1001.0};
       }},
      {"labels", [](CalibrationJob& job) { job.labels["A b"] = "x"; }},
      {"labels.domain", [](CalibrationJob& job) { job.labels["domain"] = "\xff"; }},
      {"sequence_tokens", [](CalibrationJob& job) { job.sequence_tokens = 63; }},
      {"sequence_tokens", [](CalibrationJob& job) { job.sequence_tokens = 4097; }},
      {"sequence_tokens", [](CalibrationJob& job) { job.sequence_tokens = -5; }},
  };
  for (const Case& bad : cases) {
    CalibrationJob job = MatchJob();
    bad.spoil(job);
    const auto result = RunJob(OnGated(), job);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << bad.field;
    EXPECT_EQ(GetErrorDetail(result.status()).field, bad.field) << result.status();
  }
}

TEST(Calibrate, SamplesOfOneDocumentAreOnOneSide) {
  CalibrationJob job = MatchJob();
  job.documents = {1, 2, 1, 2};
  const auto result = RunJob(OnGated(), job).value();
  EXPECT_EQ(result.content.evidence.calibration_documents, 1);
  EXPECT_EQ(result.content.evidence.calibration_sequences, 2);
  EXPECT_EQ(result.content.evidence.held_out_sequences, 2);
  job.documents = {1, 1, 1, 1};
  EXPECT_EQ(GetErrorDetail(RunJob(OnGated(), job).status()).field, "samples");
}

}  // namespace
}  // namespace eta::testing
