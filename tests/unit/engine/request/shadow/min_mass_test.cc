// Requests with min_mass: what keeps too little goes on with full attention, at a token that
// depends on the request alone, and what attends like it begins so if it wishes.
#include <gtest/gtest.h>

#include "engine/checkpoint/checkpoint.h"
#include "engine/front/step_engine.h"
#include "engine/request/shadow/guarded_rows.h"
#include "engine/request/shadow/mass_estimate.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/kernels/deferring_backend.h"

namespace eta::testing {
namespace {

using Answer = Recorder::Answer;

constexpr int32_t kPrompt = 100;
constexpr int32_t kTokens = 160;
// The decode row with which the sixteenth row-layer comes draws the token before this one.
constexpr int32_t kSwitch =
    GuardedRows::kPeriod * (MassEstimate::kLeast / GuardedRows::kLayers - 1) +
    GuardedRows::kPeriod / 2 + 2;

class MinMass : public ::testing::Test {
 protected:
  EngineOptions Options() const { return ReferenceOptionsFor(model_); }
  // Loses: only the newest block is read, and what is rescued.
  Request Losing(std::optional<float> min_mass, uint32_t seed = 1) const {
    Request request = Greedy(Prompt(kPrompt, seed), kTokens);
    request.id = "request-" + std::to_string(seed);
    request.tenant = "tenant-" + std::to_string(seed);  // nobody else's loss counts
    request.attention = FrozenAt(config_, kAboveAllBounds);
    request.attention.settings.min_mass = min_mass;
    return request;
  }

  TinyModel model_;
  const ModelConfig config_ = Start(Options())->info().config;
};

TEST_F(MinMass, WhatKeepsTooLittleGoesOnWithFullAttention) {
  const auto engine = Start(Options());
  const Answer answer = Ask(*engine, Losing(0.999f));
  ASSERT_TRUE(answer.finished.has_value());
  EXPECT_EQ(answer.started.at(0).attention.begin, Begin::kAsAsked);
  ASSERT_TRUE(answer.finished->full_from.has_value());
  EXPECT_EQ(*answer.finished->full_from, kSwitch) << "within 200 tokens";
  const AttentionSums& attention = answer.finished->attention;
  EXPECT_EQ(attention.shadow_row_layers, MassEstimate::kLeast) << "full rows are not measured";
  EXPECT_LT(attention.mass_kept(), 0.999);
  EXPECT_GT(attention.output_error(), 0.0);

  // Up to there the answer is what it is without a bound; the densities tell the rest.
  const Answer careless = Ask(*Start(Options()), Losing({}));
  EXPECT_FALSE(careless.finished->full_from.has_value());
  const auto until = [&](const Answer& of) {
    return std::vector<int32_t>(of.ids.begin(), of.ids.begin() + kSwitch);
  };
  EXPECT_EQ(until(answer), until(careless));

  // Rows with full attention are no rows of what was asked for.
  Request shorter = Losing({});
  shorter.stopping.max_tokens = kSwitch;
  const AttentionSums own = Ask(*Start(Options()), shorter).finished->attention;
  EXPECT_EQ(attention.decode_rows, own.decode_rows);
  EXPECT_EQ(attention.keys_attended, own.keys_attended);
  EXPECT_EQ(attention.keys_read, own.keys_read);
  EXPECT_EQ(attention.kv_bytes_dense, own.kv_bytes_dense);
  EXPECT_EQ(attention.union_density(), own.union_density());
  EXPECT_EQ(attention.decode_rows + attention.fallback_rows, kTokens - 1);
  Request whole = Losing({});
  whole.attention = {.mode = AttentionMode::kFull};
  EXPECT_EQ(attention.kv_bytes_dense + attention.fallback_kv_bytes_read,
            Ask(*Start(Options()), whole).finished->attention.kv_bytes_read);
}

TEST_F(MinMass, WhatKeepsEnoughGoesOnAsItIs) {
  const Answer answer = Ask(*Start(Options()), Losing(0.001f));
  EXPECT_FALSE(answer.finished->full_from.has_value());
  EXPECT_EQ(answer.finished->attention.shadow_row_layers,
            GuardedRows::kLayers * (kTokens / GuardedRows::kPeriod));
}

TEST_F(MinMass, TheNextRequestIsAnsweredAlike) {
  const auto engine = Start(Options());
  const Answer first = Ask(*engine, Losing(0.999f));
  for (int i = 0; i < 3; ++i) {
    const Answer next = Ask(*engine, Losing(0.999f));
    EXPECT_EQ(next.ids, first.ids);
    EXPECT_EQ(next.finished->full_from, first.finished->full_from);
  }
}

TEST_F(MinMass, TheNextRequestBeginsWithFullAttentionIfItWishes) {
  const auto engine = Start(Options());
  Request wishing = Losing(0.999f);
  wishing.attention.begin = Begin::kFullWhereRecentMassWasLow;
  EXPECT_EQ(Ask(*engine, wishing).started.at(0).attention.begin, Begin::kAsAsked);
  const Answer next = Ask(*engine, wishing);
  EXPECT_EQ(next.started.at(0).attention.begin, Begin::kFull);
  EXPECT_EQ(next.started.at(0).attention.mode, AttentionMode::kProfile);
  EXPECT_EQ(next.finished->full_from, 0);
  EXPECT_EQ(next.finished->attention.decode_rows, 0) << "none is the profile's own";
  EXPECT_EQ(next.finished->attention.fallback_rows, kTokens - 1);
  EXPECT_EQ(next.finished->attention.shadow_row_layers, 0);
  // As if every block were pinned.
  Request whole = Losing({});
  whole.attention.settings.pinned_blocks = 1024;
  EXPECT_EQ(next.ids, Ask(*engine, whole).ids);

  // What Started says repeats the answer anywhere.
  Request repeated = Losing(0.999f);
  repeated.attention.begin = next.started.at(0).attention.begin;
  EXPECT_EQ(Ask(*Start(Options()), repeated).ids, next.ids);

  Request stranger = Losing(0.999f, 2);
  stranger.attention.begin = Begin::kFullWhereRecentMassWasLow;
  EXPECT_EQ(Ask(*engine, stranger).started.at(0).attention.begin, Begin::kAsAsked)
      << "another tenant";
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
  const auto engine = Start(WithBlocks(Options(), 36));
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
  const auto checkpoint = Checkpoint::Open(options.model_dir).value();
  auto engine =
      StepEngine::Create(options, checkpoint,
                         std::make_unique<DeferringBackend>(MakeBackend(options.backend).value()))
          .value();
  const Answer deferred = Ask(*engine, Losing(0.999f));
  EXPECT_EQ(deferred.finished->full_from, plain.finished->full_from);
  EXPECT_EQ(deferred.ids, plain.ids);
  EXPECT_EQ(deferred.finished->attention.mass_kept(), plain.finished->attention.mass_kept());
}

TEST_F(MinMass, IsMeasuredWithoutARateToo) {
  EngineOptions options = Options();
  options.shadow_rate = 0.0;
  EXPECT_TRUE(Ask(*Start(options), Losing(0.999f)).finished->full_from.has_value());
}

}  // namespace
}  // namespace eta::testing
