// Requests with min_mass: what keeps too little goes on with full attention, at a token that
// depends on the request alone, and what attends like it begins so.
#include <gtest/gtest.h>

#include "engine/checkpoint/checkpoint.h"
#include "engine/request/shadow/guarded_rows.h"
#include "engine/request/shadow/mass_estimate.h"
#include "engine/step_engine.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/kernels/deferring_backend.h"

namespace eta {
namespace {

using testing::Ask;
using testing::AskTogether;
using testing::FrozenAt;
using testing::Greedy;
using testing::kAboveAllBounds;
using testing::OptionsFor;
using testing::Prompt;
using testing::Start;
using testing::TinyModel;
using Answer = testing::Recorder::Answer;

constexpr int32_t kPrompt = 100;
constexpr int32_t kTokens = 160;
// The decode row with which the sixteenth row-layer comes draws the token before this one.
constexpr int32_t kSwitch =
    GuardedRows::kPeriod * (MassEstimate::kLeast / GuardedRows::kLayers - 1) +
    GuardedRows::kPeriod / 2 + 2;

class MinMass : public ::testing::Test {
 protected:
  EngineOptions Options() const {
    EngineOptions options = OptionsFor(model_);
    options.backend.name = "reference";
    return options;
  }
  // Loses: only the newest block is read, and what is rescued.
  Request Losing(std::optional<float> min_mass, uint32_t seed = 1) const {
    Request request = Greedy(Prompt(kPrompt, seed), kTokens);
    request.id = "request-" + std::to_string(seed);
    request.tenant = "tenant-" + std::to_string(seed);  // nobody else's loss counts
    request.attention = FrozenAt(config_, kAboveAllBounds);
    request.attention.min_mass = min_mass;
    return request;
  }

  TinyModel model_;
  const ModelConfig config_ = Start(Options())->info().config;
};

TEST_F(MinMass, WhatKeepsTooLittleGoesOnWithFullAttention) {
  const auto engine = Start(Options());
  const Answer answer = Ask(*engine, Losing(0.999f));
  ASSERT_TRUE(answer.finished.has_value());
  EXPECT_FALSE(answer.started.at(0).below_min_mass);
  ASSERT_TRUE(answer.finished->full_from.has_value());
  EXPECT_EQ(*answer.finished->full_from, kSwitch) << "within 200 tokens";
  const AttentionStatistics& attention = answer.finished->attention;
  EXPECT_EQ(attention.shadow_row_layers, MassEstimate::kLeast) << "full rows are not measured";
  EXPECT_LT(attention.mass_kept, 0.999);
  EXPECT_GT(attention.output_error, 0.0);

  // Up to there the answer is what it is without a bound; the densities tell the rest.
  const Answer careless = Ask(*Start(Options()), Losing({}));
  EXPECT_FALSE(careless.finished->full_from.has_value());
  const auto until = [&](const Answer& of) {
    return std::vector<int32_t>(of.ids.begin(), of.ids.begin() + kSwitch);
  };
  EXPECT_EQ(until(answer), until(careless));
  EXPECT_GT(attention.keys_read, careless.finished->attention.keys_read);
}

TEST_F(MinMass, WhatKeepsEnoughGoesOnAsItIs) {
  const Answer answer = Ask(*Start(Options()), Losing(0.001f));
  EXPECT_FALSE(answer.finished->full_from.has_value());
  EXPECT_EQ(answer.finished->attention.shadow_row_layers,
            GuardedRows::kLayers * (kTokens / GuardedRows::kPeriod));
}

TEST_F(MinMass, TheNextRequestBeginsWithFullAttention) {
  const auto engine = Start(Options());
  Ask(*engine, Losing(0.999f));
  const Answer next = Ask(*engine, Losing(0.999f));
  EXPECT_TRUE(next.started.at(0).below_min_mass);
  EXPECT_EQ(next.started.at(0).attention.mode, AttentionMode::kProfile);
  EXPECT_EQ(next.finished->full_from, 0);
  EXPECT_EQ(next.finished->attention.union_density, 1.0);
  EXPECT_EQ(next.finished->attention.shadow_row_layers, 0);
  // As if every block were pinned.
  Request whole = Losing({});
  whole.attention.pinned_blocks = 1024;
  EXPECT_EQ(next.ids, Ask(*engine, whole).ids);

  EXPECT_FALSE(Ask(*engine, Losing({})).started.at(0).below_min_mass) << "it asks for nothing";
  EXPECT_FALSE(Ask(*engine, Losing(0.999f, 2)).started.at(0).below_min_mass) << "another tenant";
}

TEST_F(MinMass, TheSwitchDependsOnTheRequestAlone) {
  std::vector<Request> requests;
  std::vector<Answer> alone;
  for (const uint32_t seed : {1u, 2u, 3u}) {
    requests.push_back(Losing(0.999f, seed));
    alone.push_back(Ask(*Start(Options()), requests.back()));
    ASSERT_TRUE(alone.back().finished->full_from.has_value());
  }
  // Three answers of 17 blocks each in a pool of 36: somebody gives way, and is computed again.
  const auto engine = Start(testing::WithBlocks(Options(), 36));
  const std::vector<Answer> together = AskTogether(*engine, requests);
  int32_t preemptions = 0;
  for (size_t i = 0; i < together.size(); ++i) {
    ASSERT_TRUE(together[i].finished.has_value()) << together[i].status;
    EXPECT_EQ(together[i].finished->full_from, alone[i].finished->full_from);
    EXPECT_EQ(together[i].ids, alone[i].ids);
    EXPECT_EQ(together[i].finished->attention.shadow_row_layers,
              alone[i].finished->attention.shadow_row_layers);
    EXPECT_EQ(together[i].finished->attention.keys_read, alone[i].finished->attention.keys_read);
    preemptions += together[i].finished->preemptions;
  }
  EXPECT_GT(preemptions, 0);
}

TEST_F(MinMass, StepsThatArePreparedChangeNothing) {
  const Answer plain = Ask(*Start(Options()), Losing(0.999f));
  const EngineOptions options = Options();
  const auto checkpoint = Checkpoint::Open(options.model_dir);
  ASSERT_TRUE(checkpoint.ok());
  auto engine = StepEngine::Create(
      options, *checkpoint,
      std::make_unique<testing::DeferringBackend>(MakeBackend(options.backend).value()));
  ASSERT_TRUE(engine.ok()) << engine.status();
  const Answer deferred = Ask(**engine, Losing(0.999f));
  EXPECT_EQ(deferred.finished->full_from, plain.finished->full_from);
  EXPECT_EQ(deferred.ids, plain.ids);
  EXPECT_EQ(deferred.finished->attention.mass_kept, plain.finished->attention.mass_kept);
}

TEST_F(MinMass, IsMeasuredWithoutARateToo) {
  EngineOptions options = Options();
  options.shadow_rate = 0.0;
  EXPECT_TRUE(Ask(*Start(options), Losing(0.999f)).finished->full_from.has_value());
}

}  // namespace
}  // namespace eta
