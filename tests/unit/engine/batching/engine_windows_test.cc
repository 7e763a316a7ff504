// Models of which some layers, or all, see a window: the answers depend on nothing else that the
// engine does, and the cache holds what the windows show.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/model/layer_groups.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/pass_recorder.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kWindow = 40;  // two and a half blocks

struct WindowCase {
  const char* name;
  TinyModelOptions model;
};

void PrintTo(const WindowCase& tested, std::ostream* out) {
  *out << tested.name;
}

std::vector<WindowCase> WindowCases() {
  return {
      {"mixed",
       {.num_layers = 3,
        .model_type = "qwen3",
        .sliding_window = kWindow,
        .window_layers = {true, false, true}}},
      {"five_to_one",
       {.num_layers = 6,
        .model_type = "qwen2",
        .sliding_window = kWindow,
        .window_layers = {true, true, true, true, true, false}}},
      {"all", {.model_type = "mistral", .sliding_window = kWindow}},
  };
}

// Ragged lengths on both sides of the window; some read sparsely, some are sampled.
std::vector<Request> WindowRequests(const ModelConfig& config) {
  const bool sparse = config.num_full_layers() > 0;
  std::vector<Request> requests;
  for (int i = 0; i < 10; ++i) {
    const int32_t length = 3 + (i * 89) % 331;
    Request request = Greedy(Prompt(length, static_cast<uint32_t>(i)), 10 + 12 * (i % 5));
    request.output.logprobs = 0;
    if (i % 3 == 1) request.attention = {.mode = AttentionMode::kFull};
    if (i % 3 == 2 && sparse) request.attention.settings.sparse_prefill = true;
    if (i % 4 == 3) {
      request.sampling.temperature = 0.9f;
      // Among all tokens, nearly alike here, a GPU's rounding would decide a draw.
      request.sampling.top_k = 8;
      request.sampling.seed = static_cast<uint64_t>(1000 + i);
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

void ExpectSame(const Recorder::Answer& answer, const Recorder::Answer& alone) {
  ASSERT_TRUE(answer.finished) << answer.status;
  EXPECT_EQ(answer.ids, alone.ids);
  ASSERT_EQ(answer.logprobs.size(), alone.logprobs.size());
  for (size_t i = 0; i < alone.logprobs.size(); ++i) {
    EXPECT_NEAR(answer.logprobs[i].logprob, alone.logprobs[i].logprob, BatchTolerance()) << i;
  }
}

class Windows : public ::testing::TestWithParam<WindowCase> {
 protected:
  EngineOptions Options() const {
    EngineOptions options = OptionsFor(model_);
    options.max_step_tokens = 64;
    options.max_running = 8;
    return options;
  }
  const std::vector<Recorder::Answer>& Alone() {
    if (alone_.empty()) {
      EngineOptions options = OptionsFor(model_);
      options.prefix_cache = false;
      const auto engine = Start(options);
      for (Request& request : WindowRequests(engine->info().config)) {
        alone_.push_back(Ask(*engine, std::move(request)));
        EXPECT_TRUE(alone_.back().finished) << alone_.back().status;
      }
    }
    return alone_;
  }
  void ExpectAsAlone(const std::vector<Recorder::Answer>& answers) {
    ASSERT_EQ(answers.size(), Alone().size());
    for (size_t i = 0; i < answers.size(); ++i) {
      SCOPED_TRACE(i);
      ExpectSame(answers[i], Alone()[i]);
    }
  }

  TinyModel model_{GetParam().model};
  std::vector<Recorder::Answer> alone_;
};

TEST_P(Windows, BatchesAndChunksDoNotMatter) {
  for (const int32_t step_tokens : {8, 64, 2048}) {
    SCOPED_TRACE(step_tokens);
    EngineOptions options = Options();
    options.max_step_tokens = step_tokens;
    const auto engine = Start(options);
    ExpectAsAlone(AskTogether(*engine, WindowRequests(engine->info().config)));
    WaitUntilIdle(*engine);
    EXPECT_EQ(engine->Snapshot().blocks_used, 0);
  }
}

TEST_P(Windows, PreemptionDoesNotMatter) {
  // Short prompts and long answers: all begin, and the cache holds two of them to the end.
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(Greedy(Prompt(20 + i, static_cast<uint32_t>(i)), 150));
    requests.back().output.logprobs = 0;
  }
  const auto whole = Start(Options());
  std::vector<Recorder::Answer> alone;
  for (const Request& request : requests) alone.push_back(Ask(*whole, request));
  const LayerGroups groups = GroupLayers(whole->info().config);
  const auto blocks = 2 * static_cast<int32_t>(groups.MostPages(180, 64, 16));
  for (const bool prefix_cache : {true, false}) {
    EngineOptions options = WithBlocks(Options(), blocks);
    options.prefix_cache = prefix_cache;
    const auto engine = Start(options);
    const auto together = AskTogether(*engine, requests);
    int32_t preemptions = 0;
    for (size_t i = 0; i < together.size(); ++i) {
      ExpectSame(together[i], alone[i]);
      preemptions += together[i].finished ? together[i].finished->preemptions : 0;
    }
    EXPECT_GT(preemptions, 0) << "of " << blocks << " blocks";
    WaitUntilIdle(*engine);
    EXPECT_EQ(engine->Snapshot().blocks_used, 0);
  }
}

TEST_P(Windows, SharedPrefixesDoNotMatterWhateverIsLeftOfThem) {
  const auto whole = Start(Options());
  const LayerGroups groups = GroupLayers(whole->info().config);
  const auto scarce = static_cast<int32_t>(groups.MostPages(331 + 60, 64, 16));
  for (const int32_t blocks : {whole->info().num_blocks, 2 * scarce, scarce + 1}) {
    const auto engine = Start(WithBlocks(Options(), blocks));
    int32_t cached = 0;
    for (int round = 0; round < 3; ++round) {
      std::vector<Recorder::Answer> answers;
      for (Request& request : WindowRequests(engine->info().config)) {
        answers.push_back(Ask(*engine, std::move(request)));
        cached += answers.back().finished ? answers.back().finished->cached_tokens : 0;
      }
      ExpectAsAlone(answers);
    }
    if (blocks == whole->info().num_blocks) {
      EXPECT_GT(cached, 1500);
    }
  }
}

// Several answers to one prompt: all share its blocks, and each lets go of those that it passes.
TEST_P(Windows, AnswersToOnePromptShareItsBlocks) {
  const auto engine = Start(Options());
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) {
    Request request = Greedy(Prompt(200, 77), 60);
    request.sampling.temperature = 0.8f;
    request.sampling.seed = static_cast<uint64_t>(i);
    requests.push_back(std::move(request));
  }
  const auto together = AskTogether(*engine, requests);
  EngineOptions cold = Options();
  cold.prefix_cache = false;
  const auto other = Start(cold);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(together[i].ids, Ask(*other, requests[i]).ids) << i;
    if (i > 0) {
      EXPECT_EQ(together[i].finished->cached_tokens, 192) << i;
    }
  }
}

TEST_P(Windows, PassesMeasureTheSameInAnySteps) {
  std::vector<std::vector<float>> losses;
  for (const int32_t step_tokens : {2048, 64, 16}) {
    EngineOptions options = Options();
    options.max_step_tokens = step_tokens;
    const auto engine = Start(options);
    Pass pass;
    pass.tokens = Prompt(300, 5);
    pass.decode_from = 200;
    pass.loss_from = 0;
    pass.shadow = engine->info().config.num_full_layers() > 0;
    const auto recorder = std::make_shared<PassRecorder>();
    ASSERT_TRUE(engine->SubmitPass(pass, recorder).ok());
    const auto outcome = recorder->Wait();
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    losses.push_back(outcome->losses);
    EXPECT_EQ(outcome->attention.decode_rows, 100);
    if (pass.shadow) {
      const auto full = static_cast<size_t>(engine->info().config.num_full_layers());
      EXPECT_EQ(outcome->mass.size(), 100 * full);
      EXPECT_EQ(outcome->attention.shadow_row_layers, static_cast<int64_t>(100 * full));
    }
    WaitUntilIdle(*engine);
    EXPECT_EQ(engine->Snapshot().blocks_used, 0);
  }
  const auto near =
      ::testing::Pointwise(::testing::FloatNear(static_cast<float>(BatchTolerance())), losses[0]);
  EXPECT_THAT(losses[1], near);
  EXPECT_THAT(losses[2], near);
}

// A request that would not fit if every layer held all of its tokens.
TEST_P(Windows, TheCacheHoldsWhatWindowsShow) {
  const auto whole = Start(Options());
  const LayerGroups groups = GroupLayers(whole->info().config);
  constexpr int32_t kTokens = 1500;
  const auto blocks = static_cast<int32_t>(groups.MostPages(kTokens, 64, 16));
  EXPECT_LT(blocks, groups.size() * kTokens / 16);
  const auto engine = Start(WithBlocks(Options(), blocks));
  EXPECT_GE(engine->info().pool_tokens, kTokens);
  const auto answer = Ask(*engine, Greedy(Prompt(kTokens - 20, 9), 20));
  EXPECT_EQ(answer.ids.size(), 20u) << answer.status;
  if (groups.num_full() == 0) return;
  const auto over = Ask(*engine, Greedy(Prompt(kTokens + 20, 9), 20));
  EXPECT_EQ(GetErrorDetail(over.status).reason, "KV_POOL_TOO_SMALL") << over.status;
}

TEST_P(Windows, CountsAreOfFullLayers) {
  const auto engine = Start(Options());
  const ModelConfig& config = engine->info().config;
  Request request = Greedy(Prompt(300, 3), 8);
  request.attention = {.mode = AttentionMode::kFull};
  request.output.layer_statistics = true;
  const auto answer = Ask(*engine, request);
  ASSERT_TRUE(answer.finished) << answer.status;
  const AttentionSums& sums = answer.finished->attention;
  EXPECT_EQ(sums.decode_rows, 7);
  EXPECT_DOUBLE_EQ(sums.head_density(), 1.0);
  int64_t keys = 0;
  for (int32_t row = 0; row < 7; ++row) keys += 301 + row;
  EXPECT_EQ(sums.keys_eligible, keys * config.num_full_layers() * config.num_query_heads);
  EXPECT_EQ(sums.keys_attended, sums.keys_eligible);
  ASSERT_EQ(answer.finished->layers.size(), static_cast<size_t>(config.num_layers));
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const LayerDensity& layer = answer.finished->layers[static_cast<size_t>(i)];
    EXPECT_DOUBLE_EQ(layer.union_density, config.IsFull(i) ? 1.0 : 0.0) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Windows, ::testing::ValuesIn(WindowCases()),
                         [](const auto& test) { return std::string(test.param.name); });

// bad input: Attention | settings, thresholds or a profile for a model all of whose layers see a
//   window | INVALID_ARGUMENT naming the field and the window |
//   FamilyProcessTest.WindowsAreServedPastTheirLength
TEST(WindowsAlone, SettingsOfAttentionAreRefused) {
  const TinyModel model({.model_type = "mistral", .sliding_window = kWindow});
  const auto engine = Start(OptionsFor(model));
  const auto refused = [&](const std::string& field, const AttentionChoice& attention) {
    Request request = Greedy(Prompt(100, 1), 4);
    request.attention = attention;
    const auto answer = Ask(*engine, std::move(request));
    EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument) << answer.status;
    EXPECT_EQ(GetErrorDetail(answer.status).field, field);
    EXPECT_THAT(std::string(answer.status.message()), HasSubstr("a window of 40 tokens"));
  };
  refused("attention.dynamic", {.mode = AttentionMode::kDynamic});
  refused("attention.profile", Frozen(engine->info().config, "any"));
  refused("attention.pinned_blocks", {.settings = {.pinned_blocks = 3}});
  refused("attention.min_mass", {.settings = {.min_mass = 0.9f}});
  refused("attention.begin", {.begin = Begin::kFull});
  Request plain = Greedy(Prompt(100, 1), 4);
  EXPECT_EQ(Ask(*engine, plain).ids.size(), 4u);
  plain.attention = {.mode = AttentionMode::kFull};
  EXPECT_EQ(Ask(*engine, plain).ids.size(), 4u);
}

// There every layer sees every key, as it did without windows, and reads sparsely.
TEST(WindowsAlone, AWindowAsLongAsTheContextIsAFullLayer) {
  const TinyModel window({.model_type = "mistral", .sliding_window = 200});
  const TinyModel none({.model_type = "mistral"});
  EngineOptions options = OptionsFor(window);
  options.limits.max_context = 200;
  const auto engine = Start(options);
  EXPECT_EQ(engine->info().config.num_full_layers(), 2);
  options.model_dir = none.path();
  const auto plain = Start(options);
  Request request = Greedy(Prompt(150, 1), 50);
  request.attention.settings.pinned_blocks = 1;
  EXPECT_EQ(Ask(*engine, request).ids, Ask(*plain, request).ids);
  options.model_dir = window.path();
  options.limits.max_context = 201;
  const auto longer = Start(options);
  EXPECT_EQ(longer->info().config.num_full_layers(), 0);
  EXPECT_NE(longer->info().model_fingerprint, engine->info().model_fingerprint)
      << "a profile of the one is not the other's";
}

// Routers learn of each group of layers what can be found.
TEST(WindowsAlone, EventsSayWhichGroupABlockIsOf) {
  const TinyModel model({.num_layers = 3,
                         .model_type = "qwen3",
                         .sliding_window = kWindow,
                         .window_layers = {true, false, true}});
  EngineOptions options = OptionsFor(model);
  options.kv_events = std::make_shared<KvEventLog>();
  const auto engine = Start(options);
  const LayerGroups groups = GroupLayers(engine->info().config);
  ASSERT_EQ(groups.size(), 3);
  Ask(*engine, Greedy(Prompt(100, 1), 2));
  WaitUntilIdle(*engine);
  std::vector<std::vector<int64_t>> hashes(3);
  for (const KvBlockPtr& block : options.kv_events->TakeSnapshot().blocks) {
    ASSERT_TRUE(block->group);
    EXPECT_EQ(block->group->window, block->group->index == 0 ? 0u : 40u);
    hashes[block->group->index].push_back(block->hash);
  }
  EXPECT_EQ(hashes[0].size(), 6u);
  EXPECT_EQ(hashes[1], hashes[0]) << "a block of a prompt has one hash";
  EXPECT_EQ(hashes[2], hashes[0]);
}

}  // namespace
}  // namespace eta::testing
