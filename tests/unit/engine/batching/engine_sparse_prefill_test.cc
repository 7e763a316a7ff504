// What is told of a sparse prefill: each row once, wherever the prompt was cut.

#include <gtest/gtest.h>

#include "tests/testing/engine/engine_run.h"

namespace eta::testing {
namespace {

constexpr int32_t kPromptTokens = 230;

Request Sparse(uint32_t seed, int32_t max_tokens = 3) {
  Request request = Greedy(Prompt(kPromptTokens, seed), max_tokens);
  request.attention = {.mode = AttentionMode::kDynamic,
                       .settings = {.z = 0.5f, .sparse_prefill = true}};
  return request;
}

void ExpectSameRows(const AttentionSums& got, const AttentionSums& want) {
  EXPECT_EQ(got.prefill_rows, want.prefill_rows);
  EXPECT_EQ(got.prefill_keys_attended, want.prefill_keys_attended);
  EXPECT_EQ(got.prefill_keys_eligible, want.prefill_keys_eligible);
  EXPECT_NEAR(got.prefill_density(), want.prefill_density(), 1e-12);
}

TEST(SparsePrefillStatistics, CountEveryRowOfThePrompt) {
  const TinyModel model;
  const auto engine = Start(OptionsFor(model));
  const ModelConfig& config = engine->info().config;
  const auto answer = Ask(*engine, Sparse(1));
  ASSERT_TRUE(answer.finished) << answer.status;
  EXPECT_TRUE(answer.started[0].attention.options.sparse_prefill);
  const AttentionSums& attention = answer.finished->attention;
  EXPECT_EQ(attention.prefill_rows, kPromptTokens);
  EXPECT_EQ(attention.prefill_keys_eligible, int64_t{kPromptTokens} * (kPromptTokens + 1) / 2 *
                                                 config.num_layers * config.num_query_heads);
  EXPECT_LT(attention.prefill_keys_attended, attention.prefill_keys_eligible);
  EXPECT_GT(attention.prefill_density(), 0.1);
  EXPECT_LT(attention.prefill_density(), 1.0);

  Request full = Sparse(2);
  full.attention.settings.sparse_prefill = false;
  EXPECT_EQ(Ask(*engine, full).finished->attention.prefill_rows, 0);
}

TEST(SparsePrefillStatistics, ChunksDoNotMatter) {
  const TinyModel model;
  const auto whole = Ask(*Start(OptionsFor(model)), Sparse(1));
  ASSERT_TRUE(whole.finished) << whole.status;
  for (const int32_t step_tokens : {7, 64}) {
    EngineOptions options = OptionsFor(model);
    options.max_step_tokens = step_tokens;
    options.max_running = 3;
    const auto cut = Ask(*Start(options), Sparse(1));
    ASSERT_TRUE(cut.finished) << cut.status;
    EXPECT_EQ(cut.ids, whole.ids);
    ExpectSameRows(cut.finished->attention, whole.finished->attention);
  }
}

TEST(SparsePrefillStatistics, LeaveOutWhatWasCached) {
  const TinyModel model;
  const auto engine = Start(OptionsFor(model));
  const auto first = Ask(*engine, Sparse(1));
  const auto second = Ask(*engine, Sparse(1));
  ASSERT_TRUE(second.finished) << second.status;
  EXPECT_GT(second.finished->cached_tokens, 100);
  EXPECT_EQ(second.ids, first.ids);
  EXPECT_EQ(second.finished->attention.prefill_rows,
            kPromptTokens - second.finished->cached_tokens);
  Request full = Sparse(1);
  full.attention.settings.sparse_prefill = false;
  EXPECT_EQ(Ask(*engine, full).finished->cached_tokens, 0) << "its keys and values are others";
}

TEST(SparsePrefillStatistics, CountOnceWhatIsPreempted) {
  const TinyModel model;
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 6; ++i) requests.push_back(Sparse(i, 60));
  EngineOptions options = WithBlocks(OptionsFor(model), 34);
  options.max_step_tokens = 96;
  const auto together = AskTogether(*Start(options), requests);
  int32_t preemptions = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto alone = Ask(*Start(OptionsFor(model)), requests[i]);
    ASSERT_TRUE(together[i].finished && alone.finished) << together[i].status;
    EXPECT_EQ(together[i].ids, alone.ids) << "request " << i;
    ExpectSameRows(together[i].finished->attention, alone.finished->attention);
    preemptions += together[i].finished->preemptions;
  }
  EXPECT_GT(preemptions, 0) << "two prompts fit into 34 blocks of 16 tokens, their answers do not";
}

}  // namespace
}  // namespace eta::testing
