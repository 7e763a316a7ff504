// The promise of engine_exactness_test.cc for what goes beyond the paper: outlier records, sink
// blocks, shared reads, tempered special keys, relative thresholds. On the reference, and on the
// backend of the other tests.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>

#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/pass_recorder.h"

namespace eta {
namespace {

using testing::Ask;
using testing::AskTogether;
using testing::Greedy;
using testing::OptionsFor;
using testing::Start;
using testing::TinyModel;
using testing::TinyModelOptions;
using testing::UseReference;

constexpr int32_t kEnd = 2;  // </s>; 1 is <s>

struct OptionsCase {
  std::string name;
  bool on_reference;
  TinyModelOptions model;
  std::vector<AttentionChoice> choices;
};

std::ostream& operator<<(std::ostream& out, const OptionsCase& options) {
  return out << options.name;
}

AttentionChoice WithProfile(ThresholdProfile profile, AttentionChoice choice = {}) {
  profile.name = "frozen";
  profile.num_layers = 2;
  profile.num_query_heads = 4;
  if (!profile.relative_c) profile.thresholds = {0.3f, 0.8f, 0.5f, 0.4f, 0.7f, 0.3f, 0.6f, 0.5f};
  choice.mode = AttentionMode::kProfile;
  choice.profile = std::make_shared<ThresholdProfile>(std::move(profile));
  return choice;
}

std::vector<AttentionChoice> OfGatedModel() {
  return {{.settings = {.z = 0.5f, .sink_blocks = 2}},
          {.settings = {.z = 0.5f, .pinned_blocks = 1, .shared_reads = true}},
          {.settings = {.z = 0.5f, .temper_special = true}},
          {.settings = {.z = 1.0f, .confirm = true}},
          {.settings = {.z = 0.5f, .sparse_prefill = true}},
          {.settings =
               {.z = 0.5f, .uniform_floor = false, .shared_reads = true, .sparse_prefill = true}},
          {.settings = {.z = 1.0f, .shared_reads = true, .confirm = true, .temper_special = true}},
          {.mode = AttentionMode::kFull, .settings = {.temper_special = true}},
          {.settings = {.z = 0.5f,
                        .uniform_floor = false,
                        .sink_blocks = 1,
                        .shared_reads = true,
                        .temper_special = true}},
          WithProfile({.settings = {.z = 0.5f,
                                    .sink_blocks = 1,
                                    .shared_reads = true,
                                    .temper_special = true}}),
          WithProfile({.settings = {.z = 0.5f}}, {.settings = {.temper_special = true}})};
}

std::vector<AttentionChoice> OfPlainModel() {
  return {
      {},
      {.settings = {.offset = -1.5f}},
      {.settings = {.offset = -1.0f, .pinned_blocks = 1, .sink_blocks = 0, .shared_reads = false}},
      {.mode = AttentionMode::kFull},
      {.settings = {.offset = -2.0f, .sink_blocks = 2}},
      WithProfile({.relative_c = -2.5f, .settings = {.shared_reads = false}}),
      {.settings = {.offset = -1.0f, .sink_blocks = 0, .confirm = true}},
      {.settings = {.offset = -1.0f, .sink_blocks = 0, .sparse_prefill = true}},
      WithProfile({.relative_c = -2.0f, .settings = {.shared_reads = false, .confirm = true}}),
      WithProfile({.relative_c = -1.5f, .settings = {.offset = 0.25f, .sink_blocks = 0}})};
}

std::vector<OptionsCase> Cases() {
  std::vector<OptionsCase> cases;
  for (const bool on_reference : {true, false}) {
    const auto add = [&](const std::string& model_name, const TinyModelOptions& model,
                         const std::vector<AttentionChoice>& choices) {
      cases.push_back({model_name + (on_reference ? "OnTheReference" : "OnTheUsual"), on_reference,
                       model, choices});
    };
    add("Moment", {.special_keys = "temper"}, OfGatedModel());
    add("Outlier", {.index = "outlier", .index_metric = true}, OfGatedModel());
    add("Plain", {.has_predictor = false}, OfPlainModel());
    add("PlainWithMetric", {.has_predictor = false, .index_metric = true}, OfPlainModel());
  }
  return cases;
}

// `length` ids, among which are ends and beginnings of text.
std::vector<int32_t> PromptOf(int32_t length, uint32_t seed) {
  std::vector<int32_t> prompt = testing::Prompt(length, seed);
  for (size_t i = 0; i + 1 < prompt.size(); i += 5 + (i + seed) % 23) {
    prompt[i] = kEnd;
    prompt[i + 1] = 1;
  }
  prompt[0] = 1;
  return prompt;
}

class Options : public ::testing::TestWithParam<OptionsCase> {
 protected:
  EngineOptions Usual() const {
    EngineOptions options = OptionsFor(model_);
    if (GetParam().on_reference) UseReference(options);
    return options;
  }

  // Requests of ragged lengths with every choice, whose answers hold ends of text: of 20 tokens and
  // more, times `length`.
  std::vector<Request> Ragged(int32_t length = 1) const {
    std::vector<Request> requests;
    int i = 0;
    for (const AttentionChoice& choice : GetParam().choices) {
      Request request = Greedy(PromptOf(1 + (i * 61 + 180) % 271, static_cast<uint32_t>(i)),
                               length * (20 + 7 * (i % 3)));
      request.attention = choice;
      request.sampling.bias = {{.id = kEnd, .bias = 6.0f}};
      request.sampling.frequency_penalty = 2.0f;
      requests.push_back(std::move(request));
      ++i;
    }
    return requests;
  }

  // The answers of requests that run one after the other, each alone.
  std::vector<std::vector<int32_t>> Alone(int32_t length = 1) const {
    const auto engine = Start(Usual());
    std::vector<std::vector<int32_t>> ids;
    for (Request& request : Ragged(length)) {
      const auto answer = Ask(*engine, std::move(request));
      EXPECT_TRUE(answer.finished) << answer.status;
      ids.push_back(answer.ids);
      EXPECT_FALSE(ids.back().empty());
    }
    return ids;
  }

  TinyModel model_{GetParam().model};
};

TEST_P(Options, ABatchAnswersAsEachDoesAlone) {
  const auto alone = Alone();
  const auto engine = Start(Usual());
  const auto together = AskTogether(*engine, Ragged());
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(together[i].ids, alone[i]) << "request " << i;
}

TEST_P(Options, ChunksOfThePromptDoNotMatter) {
  const auto alone = Alone();
  for (const int32_t step_tokens : {7, 512}) {
    EngineOptions options = Usual();
    options.max_step_tokens = step_tokens;
    options.max_running = 3;
    const auto engine = Start(options);
    const auto together = AskTogether(*engine, Ragged());
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(together[i].ids, alone[i]) << "request " << i << ", steps of " << step_tokens;
    }
  }
}

TEST_P(Options, SharedPrefixesDoNotMatter) {
  const auto alone = Alone();
  const auto engine = Start(Usual());
  int32_t cached = 0;
  for (int round = 0; round < 2; ++round) {
    const auto requests = Ragged();
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto answer = Ask(*engine, requests[i]);
      EXPECT_EQ(answer.ids, alone[i]) << "request " << i;
      cached += answer.finished->cached_tokens;
    }
  }
  EXPECT_GT(cached, 400) << "the second round should have found its prompts";
}

TEST_P(Options, PreemptionDoesNotMatter) {
  const auto alone = Alone(3);
  EngineOptions options = testing::WithBlocks(Usual(), 27);
  options.max_step_tokens = 96;
  const auto engine = Start(options);
  const auto together = AskTogether(*engine, Ragged(3));
  int32_t preemptions = 0;
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(together[i].ids, alone[i]) << "request " << i;
    ASSERT_TRUE(together[i].finished) << together[i].status;
    preemptions += together[i].finished->preemptions;
  }
  EXPECT_GT(preemptions, 0) << "27 blocks of 16 tokens should not have been enough";
}

TEST_P(Options, EveryChoiceChangesSomething) {
  // Guards the tests above: one prompt, and no two choices read or answer alike.
  const auto engine = Start(Usual());
  std::vector<std::pair<std::vector<int32_t>, int64_t>> outcomes;
  bool ends = false;
  for (Request request : Ragged()) {
    request.prompt = PromptOf(270, 3);
    const bool full = request.attention.mode == AttentionMode::kFull;
    request.stopping.max_tokens = 40;
    const auto answer = Ask(*engine, std::move(request));
    ASSERT_TRUE(answer.finished) << answer.status;
    const AttentionSums& attention = answer.finished->attention;
    EXPECT_EQ(attention.union_density() == 1.0, full);
    outcomes.push_back({answer.ids, attention.kv_bytes_read});
    for (size_t i = 0; i + 1 < outcomes.size(); ++i) {
      EXPECT_NE(outcomes[i], outcomes.back()) << i << " and " << outcomes.size() - 1;
    }
    ends = ends || std::find(answer.ids.begin(), answer.ids.end(), kEnd) != answer.ids.end();
  }
  EXPECT_TRUE(ends) << "no answer has a special token";
}

INSTANTIATE_TEST_SUITE_P(, Options, ::testing::ValuesIn(Cases()),
                         [](const auto& options) { return options.param.name; });

TEST(TemperedKeys, ChangeWhatFullAttentionAnswersOfAGatedModel) {
  const TinyModel model({.special_keys = "temper"});
  EngineOptions options = OptionsFor(model);
  const auto engine = Start(options);
  Request request = Greedy(PromptOf(200, 3), 40);
  request.attention = {.mode = AttentionMode::kFull};
  const auto tempered = Ask(*engine, request);
  EXPECT_TRUE(tempered.started[0].attention.temper_special) << "as config.json says";
  request.attention.settings.temper_special = false;
  const auto attended = Ask(*engine, request);
  EXPECT_FALSE(attended.started[0].attention.temper_special);
  EXPECT_EQ(attended.finished->cached_tokens, 0) << "the prompt's keys are others";
  EXPECT_NE(tempered.ids, attended.ids);
}

TEST(TemperedKeys, CountInPassesAsInRequests) {
  const TinyModel model;
  const auto engine = Start(OptionsFor(model));
  Request request = Greedy(PromptOf(150, 5), 1);
  request.attention = {.mode = AttentionMode::kFull};
  request.output.prompt_logprobs = 0;
  Pass pass;
  pass.tokens = PromptOf(150, 5);
  pass.decode_from = 150;
  pass.loss_from = 0;
  std::vector<std::vector<float>> losses;
  for (const bool temper : {false, true}) {
    request.attention.settings.temper_special = temper;
    pass.attention = request.attention;
    const auto answer = Ask(*engine, request);
    const auto recorder = std::make_shared<testing::PassRecorder>();
    ASSERT_TRUE(engine->SubmitPass(pass, recorder).ok());
    const auto outcome = recorder->Wait();
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    std::vector<float> expected;
    for (const auto& part : answer.prefill) {
      for (const TokenDetail& token : part.prompt_logprobs) expected.push_back(-token.logprob);
    }
    ASSERT_EQ(outcome->losses.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(outcome->losses[i], expected[i], testing::BatchTolerance());
    }
    losses.push_back(outcome->losses);
  }
  EXPECT_NE(losses[0], losses[1]);
}

// bad input: Server | --index_dtype other than int8 with an index of outliers | refused, the flag
//   named
TEST(IndexFlag, ReplacesTheModelsKind) {
  const TinyModel model({.has_predictor = false});
  EngineOptions options = OptionsFor(model);
  options.index = IndexKind::kMoment;
  const auto moment = Start(options);
  EXPECT_EQ(moment->info().index, IndexKind::kMoment);
  EXPECT_EQ(moment->info().index_dtype, DType::kFloat16);
  const auto answer = Ask(*moment, Greedy(PromptOf(30, 3), 2));
  EXPECT_EQ(answer.started[0].attention.mode, AttentionMode::kFull);
  Request request = Greedy(PromptOf(30, 3), 2);
  request.attention.mode = AttentionMode::kDynamic;
  EXPECT_EQ(Ask(*moment, request).status.code(), absl::StatusCode::kFailedPrecondition);

  options.index.reset();
  const auto outlier = Start(options);
  EXPECT_EQ(outlier->info().index, IndexKind::kOutlier);
  EXPECT_EQ(outlier->info().index_dtype, DType::kInt8);
  EXPECT_EQ(outlier->info().model_fingerprint, moment->info().model_fingerprint)
      << "the flag makes no other model";
  EXPECT_TRUE(Ask(*outlier, request).finished);

  options.index_dtype = DType::kFloat16;
  const auto refused = Engine::Create(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(std::string(refused.status().message())
                .find("index_dtype: an index of kind outlier holds int8"),
            std::string::npos);
}

}  // namespace
}  // namespace eta
