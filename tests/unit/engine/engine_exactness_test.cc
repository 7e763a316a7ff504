// The promise: a greedy answer, or a seeded one, does not depend on what else the engine does.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/testing/engine/engine_run.h"

namespace eta::testing {
namespace {

AttentionChoice Full() {
  return {.mode = AttentionMode::kFull};
}

AttentionChoice Paper() {
  return {.mode = AttentionMode::kDynamic,
          .settings = {.z = 0.5f, .uniform_floor = false, .pinned_blocks = 1}};
}

AttentionChoice FrozenThresholds(const ModelConfig& config, bool head_z) {
  auto profile = std::make_shared<ThresholdProfile>();
  profile->name = "frozen";
  profile->num_layers = config.num_layers;
  profile->num_query_heads = config.num_query_heads;
  for (int i = 0; i < config.num_layers * config.num_query_heads; ++i) {
    profile->thresholds.push_back(0.3f + 0.1f * static_cast<float>(i % 5));
    if (head_z) profile->head_z.push_back(0.2f * static_cast<float>(i % 7));
  }
  return {.mode = AttentionMode::kProfile, .profile = profile};
}

// Sixteen requests of ragged lengths and every kind of attention; some of them sampled.
std::vector<Request> RaggedRequests(const ModelConfig& config) {
  std::vector<Request> requests;
  for (int i = 0; i < 16; ++i) {
    const int32_t length = 1 + (i * 61) % 331;
    Request request = Greedy(Prompt(length, static_cast<uint32_t>(i)), 20 + 15 * (i % 7));
    if (i % 4 == 1) request.attention = Full();
    if (i % 4 == 2) request.attention = Paper();
    if (i % 4 == 3) request.attention = FrozenThresholds(config, i % 8 == 3);
    if (i % 5 == 4) {
      request.sampling.temperature = 0.9f;
      request.sampling.top_p = 0.95f;
      request.sampling.repetition_penalty = 1.1f;
      request.sampling.seed = static_cast<uint64_t>(1000 + i);
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

class Exactness : public ::testing::Test {
 protected:
  // The answers of requests that run one after the other, each alone.
  std::vector<std::vector<int32_t>> Alone() {
    const auto engine = Start(OptionsFor(model_));
    std::vector<std::vector<int32_t>> ids;
    for (Request& request : RaggedRequests(engine->info().config)) {
      ids.push_back(Ask(*engine, std::move(request)).ids);
      EXPECT_FALSE(ids.back().empty());
    }
    return ids;
  }

  TinyModel model_;
};

TEST_F(Exactness, ABatchOfSixteenRaggedRequestsAnswersAsEachDoesAlone) {
  const auto alone = Alone();
  const auto engine = Start(OptionsFor(model_));
  const auto together = AskTogether(*engine, RaggedRequests(engine->info().config));
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(together[i].ids, alone[i]) << "request " << i;
}

TEST_F(Exactness, ChunksOfThePromptDoNotMatter) {
  const auto alone = Alone();
  for (const int32_t step_tokens : {7, 64, 2048}) {
    EngineOptions options = OptionsFor(model_);
    options.max_step_tokens = step_tokens;
    options.max_running = 5;
    const auto engine = Start(options);
    const auto together = AskTogether(*engine, RaggedRequests(engine->info().config));
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(together[i].ids, alone[i]) << "request " << i << ", steps of " << step_tokens;
    }
  }
}

TEST_F(Exactness, SharedPrefixesDoNotMatter) {
  const auto alone = Alone();
  const auto engine = Start(OptionsFor(model_));
  int32_t cached = 0;
  for (int round = 0; round < 2; ++round) {
    const auto requests = RaggedRequests(engine->info().config);
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto answer = Ask(*engine, requests[i]);
      EXPECT_EQ(answer.ids, alone[i]) << "request " << i;
      cached += answer.finished->cached_tokens;
    }
  }
  EXPECT_GT(cached, 1000) << "the second round should have found its prompts";
}

TEST_F(Exactness, PreemptionDoesNotMatter) {
  const auto alone = Alone();
  for (const bool prefix_cache : {true, false}) {
    EngineOptions options = WithBlocks(OptionsFor(model_), 34);
    options.prefix_cache = prefix_cache;
    options.max_step_tokens = 96;
    const auto engine = Start(options);
    const auto together = AskTogether(*engine, RaggedRequests(engine->info().config));
    int32_t preemptions = 0;
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(together[i].ids, alone[i]) << "request " << i;
      ASSERT_TRUE(together[i].finished) << together[i].status;
      preemptions += together[i].finished->preemptions;
    }
    EXPECT_GT(preemptions, 0) << "34 blocks of 16 tokens should not have been enough";
    WaitUntilIdle(*engine);
    EXPECT_EQ(engine->Snapshot().blocks_used, 0);
  }
}

TEST_F(Exactness, StatisticsDoNotFeelPreemptionEither) {
  const auto plenty = Start(OptionsFor(model_));
  const auto scarce = Start(WithBlocks(OptionsFor(model_), 34));
  const auto expected = AskTogether(*plenty, RaggedRequests(plenty->info().config));
  const auto got = AskTogether(*scarce, RaggedRequests(plenty->info().config));
  for (size_t i = 0; i < expected.size(); ++i) {
    const AttentionSums& a = expected[i].finished->attention;
    const AttentionSums& b = got[i].finished->attention;
    EXPECT_EQ(a.decode_rows, b.decode_rows);
    EXPECT_EQ(a.kv_bytes_read, b.kv_bytes_read);
    EXPECT_EQ(a.kv_bytes_dense, b.kv_bytes_dense);
    EXPECT_DOUBLE_EQ(a.head_density(), b.head_density());
  }
}

TEST_F(Exactness, ThreadsDoNotMatter) {
  const auto alone = Alone();
  EngineOptions options = OptionsFor(model_);
  options.backend.num_threads = 1;
  const auto engine = Start(options);
  const auto together = AskTogether(*engine, RaggedRequests(engine->info().config));
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(together[i].ids, alone[i]) << "request " << i;
}

TEST_F(Exactness, SparseAnswersDifferFromFullOnesSomewhere) {
  // Guards the tests above: they would prove nothing if every mode read everything.
  const auto engine = Start(OptionsFor(model_));
  Request request = Greedy(Prompt(330, 3), 40);
  request.attention = Paper();
  const auto sparse = Ask(*engine, request);
  request.attention = FrozenThresholds(engine->info().config, false);
  const auto frozen = Ask(*engine, request);
  request.attention = FrozenThresholds(engine->info().config, true);
  const auto head_z = Ask(*engine, request);
  EXPECT_NE(frozen.finished->attention.kv_bytes_read, head_z.finished->attention.kv_bytes_read);
  request.attention = Full();
  const auto full = Ask(*engine, request);
  EXPECT_LT(sparse.finished->attention.union_density(), 0.9);
  EXPECT_EQ(full.finished->attention.union_density(), 1.0);
  EXPECT_NE(sparse.ids, full.ids);
}

}  // namespace
}  // namespace eta::testing
