// What passes and answers measure against full attention.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>

#include "engine/checkpoint/checkpoint.h"
#include "engine/front/step_engine.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model.h"
#include "engine/request/request_validation.h"
#include "engine/request/shadow/shadow_sampler.h"
#include "kernels/forwarding_backend.h"
#include "kernels/params/calibration.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/pass_recorder.h"

namespace eta::testing {
namespace {

class Shadow : public ::testing::Test {
 protected:
  EngineOptions Options() const { return ReferenceOptionsFor(model_); }
  Pass MakePass(const AttentionChoice& attention) const {
    return {.tokens = Prompt(140, 5), .attention = attention, .decode_from = 70, .shadow = true};
  }
  PassOutcome Measure(const EngineOptions& options, const AttentionChoice& attention) {
    const auto outcome = testing::Measure(*Start(options), MakePass(attention));
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    return *outcome;
  }

  TinyModel model_;
  const ModelConfig config_ = Start(Options())->info().config;
};

TEST_F(Shadow, APassMeasuresEveryDecodeRowAndLayer) {
  const PassOutcome outcome = Measure(Options(), FrozenAt(config_, kAboveAllBounds));
  ASSERT_EQ(outcome.mass.size(), 140u);
  ASSERT_EQ(outcome.error.size(), 140u);
  for (size_t i = 0; i < outcome.mass.size(); ++i) {
    EXPECT_GT(outcome.mass[i], 0.0f);
    EXPECT_LT(outcome.mass[i], 1.0f) << "blocks were left unread";
    EXPECT_GT(outcome.error[i], 0.0f);
  }
  EXPECT_EQ(outcome.attention.shadow_row_layers, 140);
  const double mean = std::accumulate(outcome.mass.begin(), outcome.mass.end(), 0.0) / 140;
  EXPECT_NEAR(outcome.attention.mass_kept(), mean, 1e-6);

  EngineOptions narrow = Options();
  narrow.max_running = 3;
  narrow.max_step_tokens = 7;
  const PassOutcome pieces = Measure(narrow, FrozenAt(config_, kAboveAllBounds));
  EXPECT_EQ(pieces.mass, outcome.mass) << "steps of 7 rows";
  EXPECT_EQ(pieces.error, outcome.error);
}

TEST_F(Shadow, WhatReadsEverythingKeepsEverything) {
  for (const AttentionChoice& attention :
       {AttentionChoice{.mode = AttentionMode::kFull}, FrozenAt(config_, -1000.0f)}) {
    const PassOutcome outcome = Measure(Options(), attention);
    ASSERT_EQ(outcome.mass.size(), 140u);
    for (size_t i = 0; i < outcome.mass.size(); ++i) {
      EXPECT_NEAR(outcome.mass[i], 1.0f, 1e-6);
      EXPECT_NEAR(outcome.error[i], 0.0f, 1e-5);
    }
  }
}

TEST_F(Shadow, APassMeasuresWhatTheModelDoesByHand) {
  const AttentionChoice choice = FrozenAt(config_, kAboveAllBounds);
  const Pass pass = MakePass(choice);
  const PassOutcome outcome = Measure(Options(), choice);
  const EngineOptions options = Options();
  const auto backend = MakeBackend(options.backend).value();
  const auto checkpoint = Checkpoint::Open(options.model_dir);
  const auto model =
      Model::Load(*checkpoint, *backend, {.max_rows = 128, .max_context = 256}).value();
  const auto cache =
      KvCache::Create(*backend, config_, MakeKvGeometry(config_, options.kv_dtype), 16).value();
  std::vector<int32_t> blocks(16);
  std::iota(blocks.begin(), blocks.end(), 0);
  SequenceRows rows = {.num_rows = 70,
                       .kind = RowKind::kPrefill,
                       .rope_theta = config_.rope_theta,
                       .block_table = blocks};
  ResolveAttention(choice, config_).ApplyTo(rows);
  const std::span<const int32_t> tokens = pass.tokens;
  ASSERT_TRUE(model->Forward({tokens.first(70), std::span(&rows, 1)}, *cache, {}).ok());
  ASSERT_TRUE(model->Finish().ok());
  rows.position = 70;
  rows.kind = RowKind::kDecode;
  const std::vector<int32_t> chosen = {0, 33, 69};
  const auto heads = static_cast<size_t>(config_.num_query_heads);
  std::vector<float> mass(chosen.size() * heads);
  std::vector<float> error(chosen.size() * heads);
  const std::vector<ShadowLayer> layers = {{}, {chosen, mass.data(), error.data()}};
  ASSERT_TRUE(
      model->Forward({tokens.subspan(70), std::span(&rows, 1)}, *cache, {.shadow = layers}).ok());
  ASSERT_TRUE(model->Finish().ok());
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto mean = [&](const std::vector<float>& values) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(i * heads);
      return std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(heads), 0.0) /
             static_cast<double>(heads);
    };
    const size_t at = static_cast<size_t>(chosen[i]) * 2 + 1;
    EXPECT_NEAR(outcome.mass[at], mean(mass), 1e-6);
    EXPECT_NEAR(outcome.error[at], mean(error), 1e-6);
  }
}

// Adds up what the engine reports.
class Reports final : public Observer {
 public:
  void OnStep(const StepReport& report) override {
    const std::lock_guard lock(mutex_);
    steps_ += report.num_rows > 0 || report.prefill_rows + report.decode_rows > 0 ? 1 : 0;
    measured_steps_ += report.shadow.empty() ? 0 : 1;
    for (const ShadowReport& row : report.shadow) {
      EXPECT_NE(row.attention->mode, AttentionMode::kFull);
      ++row_layers_;
      keys_ += row.kv_len;
      longest_ = std::max<int64_t>(longest_, row.kv_len);
      mass_ += row.mass;
    }
  }
  void OnRequestEnd(const Request&, const absl::Status&, const FinishedEvent& outcome) override {
    const std::lock_guard lock(mutex_);
    answers_row_layers_ += outcome.attention.shadow_row_layers;
    answers_mass_ +=
        outcome.attention.mass_kept() * static_cast<double>(outcome.attention.shadow_row_layers);
    kv_bytes_ += outcome.attention.kv_bytes_read;
  }

  std::mutex mutex_;
  int64_t steps_ = 0;
  int64_t measured_steps_ = 0;
  int64_t row_layers_ = 0;
  int64_t keys_ = 0;
  int64_t longest_ = 0;
  double mass_ = 0.0;
  int64_t answers_row_layers_ = 0;
  double answers_mass_ = 0.0;
  int64_t kv_bytes_ = 0;
};

TEST_F(Shadow, AnswersAreMeasuredWithinTheBudgetAndStayAsTheyAre) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 3; ++i) {
    requests.push_back(Greedy(Prompt(100 + 40 * static_cast<int32_t>(i), i), 90));
    requests.back().id = "request-" + std::to_string(i);
    requests.back().attention = FrozenAt(config_, kAboveAllBounds);
  }
  requests[0].attention = {.mode = AttentionMode::kFull};
  std::vector<std::vector<int32_t>> texts;
  for (const double rate : {0.0, 1.0}) {
    EngineOptions options = Options();
    options.shadow_rate = rate;
    Reports reports;
    const auto engine = Start(options, &reports);
    for (const auto& answer : AskTogether(*engine, requests)) texts.push_back(answer.ids);
    const std::lock_guard lock(reports.mutex_);
    EXPECT_EQ(reports.row_layers_, reports.answers_row_layers_);
    EXPECT_NEAR(reports.mass_, reports.answers_mass_, 1e-6);
    if (rate == 0.0) {
      EXPECT_EQ(reports.row_layers_, 0);
      continue;
    }
    EXPECT_GT(reports.row_layers_, 10);
    EXPECT_LT(reports.mass_, static_cast<double>(reports.row_layers_));
    EXPECT_LE(reports.measured_steps_, reports.steps_ / ShadowSampler::kPeriod + 1);
    const KvGeometry geometry = MakeKvGeometry(config_, options.kv_dtype);
    const int64_t key_bytes = KvTokenBytes(geometry) * geometry.num_kv_heads;
    const double read =
        static_cast<double>(reports.kv_bytes_) +
        static_cast<double>(reports.steps_) * static_cast<double>(engine->info().weight_bytes);
    EXPECT_LE(static_cast<double>((reports.keys_ - reports.longest_) * key_bytes),
              ShadowSampler::kShare * read);
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(texts[i], texts[i + 3]);
}

// Gives what a model gives whose scores are NaN.
class BrokenShadow final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void MeasureShadow(const ShadowParams& params) override {
    ForwardingBackend::MeasureShadow(params);
    std::fill_n(params.mass, params.rows.size(), std::numeric_limits<float>::quiet_NaN());
    std::fill_n(params.error, params.rows.size(), std::numeric_limits<float>::infinity());
  }
};

TEST_F(Shadow, WhatIsNotFiniteIsNotCounted) {
  const EngineOptions options = Options();
  const auto checkpoint = Checkpoint::Open(options.model_dir).value();
  auto engine =
      StepEngine::Create(options, checkpoint,
                         std::make_unique<BrokenShadow>(MakeBackend(options.backend).value()))
          .value();
  Request request = Greedy(Prompt(100, 1), 180);
  request.attention = FrozenAt(config_, kAboveAllBounds);
  request.attention.settings.min_mass = 1.0f;
  const auto answer = Ask(*engine, request);
  ASSERT_TRUE(answer.finished.has_value()) << answer.status;
  EXPECT_FALSE(answer.finished->full_from.has_value());
  EXPECT_EQ(answer.finished->attention.shadow_row_layers, 0) << "a head of each is broken";
}

TEST_F(Shadow, ARateThatIsNoShareIsRefused) {
  for (const double rate : {-0.1, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    EngineOptions options = Options();
    options.shadow_rate = rate;
    const auto engine = Engine::Create(options);
    EXPECT_TRUE(absl::IsInvalidArgument(engine.status())) << rate;
    EXPECT_NE(engine.status().message().find("shadow_rate"), std::string::npos);
  }
}

}  // namespace
}  // namespace eta::testing
