// What a caller of the engine sees: limits, endings, shared prefixes, statistics.
#include "engine/front/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "engine/base/error.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/engine/engine_run.h"

namespace eta {
namespace {

using std::chrono::milliseconds;
using testing::Ask;
using testing::Greedy;
using ::testing::HasSubstr;
using testing::OptionsFor;
using testing::Prompt;
using testing::Start;
using testing::Submit;
using testing::TinyModel;
using testing::WaitUntilIdle;

class EngineTest : public ::testing::Test {
 protected:
  TinyModel model_;
};

TEST_F(EngineTest, TheFirstEventSaysWhatWasResolvedTheLastOneWhatItCost) {
  const auto engine = Start(OptionsFor(model_));
  Request request = Greedy(Prompt(100, 1), 10);
  request.id = "abc";
  request.sampling.seed = 7;
  const auto answer = Ask(*engine, request);
  ASSERT_EQ(answer.started.size(), 1u);
  EXPECT_EQ(answer.started[0].request_id, "abc");
  EXPECT_EQ(answer.started[0].prompt_tokens, 100);
  EXPECT_EQ(answer.started[0].seed, 7u);
  EXPECT_EQ(answer.started[0].attention.mode, AttentionMode::kDynamic);
  EXPECT_FLOAT_EQ(answer.started[0].attention.options.z, 1.5f);
  EXPECT_TRUE(answer.started[0].attention.options.uniform_floor);
  ASSERT_TRUE(answer.finished);
  EXPECT_EQ(answer.finished->reason, FinishReason::kLength);
  EXPECT_EQ(answer.finished->output_tokens, 10);
  EXPECT_EQ(answer.ids.size(), 10u);
  EXPECT_EQ(answer.finished->attention.decode_rows, 9) << "the first token comes from the prompt";
  EXPECT_GT(answer.finished->timing.first_token.count(), 0);
}

TEST_F(EngineTest, FullAttentionReadsEverythingAndDynamicNoMore) {
  const auto engine = Start(OptionsFor(model_));
  Request request = Greedy(Prompt(500, 2), 20);
  request.output.layer_statistics = true;
  const FinishedEvent outcome = *Ask(*engine, request).finished;
  const AttentionSums& dynamic = outcome.attention;
  request.attention.mode = AttentionMode::kFull;
  const auto full = Ask(*engine, request).finished->attention;
  EXPECT_DOUBLE_EQ(full.head_density(), 1.0);
  EXPECT_DOUBLE_EQ(full.union_density(), 1.0);
  EXPECT_EQ(full.kv_bytes_read, full.kv_bytes_dense);
  EXPECT_EQ(full.index_bytes_read, 0);
  // 2 layers, 2 KV heads, K and V of 32 float32, positions 500 .. 518.
  int64_t tokens = 0;
  for (int kv_len = 501; kv_len < 520; ++kv_len) tokens += kv_len;
  EXPECT_EQ(full.kv_bytes_dense, tokens * 2 * 2 * 2 * 32 * 4);
  EXPECT_EQ(dynamic.kv_bytes_dense, full.kv_bytes_dense);
  EXPECT_LE(dynamic.head_density(), dynamic.union_density());
  EXPECT_LT(dynamic.kv_bytes_read, full.kv_bytes_read);
  EXPECT_GT(dynamic.index_bytes_read, 0);
  ASSERT_EQ(outcome.layers.size(), 2u);
  EXPECT_NEAR((outcome.layers[0].union_density + outcome.layers[1].union_density) / 2,
              dynamic.union_density(), 1e-12);
}

TEST_F(EngineTest, OnlyTheSameTenantSharesAPrefixAndOnlyWhenNothingChangesIt) {
  const auto engine = Start(OptionsFor(model_));
  Request request = Greedy(Prompt(100, 3), 2);
  request.tenant = "a";
  EXPECT_EQ(Ask(*engine, request).finished->cached_tokens, 0);
  EXPECT_EQ(Ask(*engine, request).finished->cached_tokens, 96) << "six full blocks of 16";
  Request other = request;
  other.tenant = "b";
  EXPECT_EQ(Ask(*engine, other).finished->cached_tokens, 0);
  other = request;
  other.attention.settings.offset = 0.25f;
  EXPECT_EQ(Ask(*engine, other).finished->cached_tokens, 0);
  other = request;
  other.stopping.max_tokens = 2000;  // scales RoPE: another base, other keys
  other.stopping.stop_ids = {Ask(*engine, request).ids[0]};
  const auto scaled = Ask(*engine, other);
  EXPECT_EQ(scaled.started[0].cached_tokens, 0);
  EXPECT_GT(scaled.started[0].rope_theta, 10000.0f);
  other = request;
  other.attention.settings.z = 0.1f;  // prefill does not read it
  EXPECT_EQ(Ask(*engine, other).finished->cached_tokens, 96);
  other.attention = {.mode = AttentionMode::kFull};
  EXPECT_EQ(Ask(*engine, other).finished->cached_tokens, 96);
  std::get<1>(other.prompt)[20] = 299;
  EXPECT_EQ(Ask(*engine, other).finished->cached_tokens, 16);
}

TEST_F(EngineTest, ForgottenPrefixesAreComputedAgain) {
  const auto engine = Start(OptionsFor(model_));
  const Request request = Greedy(Prompt(100, 3), 2);
  Ask(*engine, request);
  ASSERT_EQ(Ask(*engine, request).finished->cached_tokens, 96);
  engine->ForgetPrefixes();
  EXPECT_EQ(Ask(*engine, request).finished->cached_tokens, 0);
  EXPECT_EQ(Ask(*engine, request).finished->cached_tokens, 96);
}

// The tiny model was trained for 1024 tokens.
TEST_F(EngineTest, QuestionsOnATextPastTheTrainedLengthShareItsPrefix) {
  const auto engine = Start(OptionsFor(model_));
  const std::vector<int32_t> text = Prompt(1100, 7);
  const auto ask = [&](Engine& asked, int32_t question_tokens, int32_t max_tokens) {
    std::vector<int32_t> prompt = text;
    const std::vector<int32_t> question =
        Prompt(question_tokens, static_cast<uint32_t>(question_tokens));
    prompt.insert(prompt.end(), question.begin(), question.end());
    return Ask(asked, Greedy(prompt, max_tokens));
  };
  const auto first = ask(*engine, 20, 30);
  EXPECT_EQ(first.started.at(0).cached_tokens, 0);
  EXPECT_EQ(first.started[0].rope_factor, 1.25f);
  const auto second = ask(*engine, 31, 44);
  EXPECT_EQ(second.started.at(0).cached_tokens, 1088) << "all full blocks of 16 of the text";
  EXPECT_EQ(second.started[0].rope_factor, 1.25f);
  EXPECT_EQ(second.started[0].rope_theta, first.started[0].rope_theta);
  EngineOptions options = OptionsFor(model_);
  options.prefix_cache = false;
  EXPECT_EQ(second.ids, ask(*Start(options), 31, 44).ids);
  // Up to 1280 tokens in all; one more is the next step.
  EXPECT_EQ(ask(*engine, 31, 149).started.at(0).cached_tokens, 1120);
  const auto next = ask(*engine, 31, 150);
  EXPECT_EQ(next.started.at(0).cached_tokens, 0);
  EXPECT_EQ(next.started[0].rope_factor, 1.5f);
}

TEST_F(EngineTest, AShortPromptKeepsItsBaseAsLongAsItsAnswerFitsTheTrainedLength) {
  const auto engine = Start(OptionsFor(model_));
  Request request = Greedy(Prompt(100, 9), 8);
  const auto answer = Ask(*engine, request);
  EXPECT_EQ(answer.started.at(0).rope_factor, 1.0f);
  EXPECT_EQ(answer.started[0].rope_theta, 10000.0f);
  request.stopping.max_tokens = 924;
  request.stopping.stop_ids = {answer.ids.back()};
  const auto longer = Ask(*engine, request);
  EXPECT_EQ(longer.started.at(0).rope_factor, 1.0f);
  EXPECT_EQ(longer.started[0].cached_tokens, 96);
  const auto stop = std::find(answer.ids.begin(), answer.ids.end(), answer.ids.back());
  EXPECT_EQ(longer.ids, std::vector<int32_t>(answer.ids.begin(), stop)) << "the same model";
  for (const int32_t max_tokens : {925, 1180}) {
    request.stopping.max_tokens = max_tokens;
    const auto scaled = Ask(*engine, request);
    EXPECT_EQ(scaled.started.at(0).rope_factor, 1.25f) << max_tokens;
    EXPECT_GT(scaled.started[0].rope_theta, 10000.0f);
    EXPECT_EQ(scaled.started[0].cached_tokens, max_tokens == 925 ? 0 : 96);
  }
}

// bad input: Prompts | special tokens, such as `</s>`, in a text | text, unless parse_special is
//   true | BadInputTest.SpecialTokensAreTextUnlessTheRequestSaysOtherwise
TEST_F(EngineTest, SpecialTokensInATextAreReadOnlyWhereTheRequestSaysSo) {
  const auto engine = Start(OptionsFor(model_));
  const std::string text = "</s>Once upon a time</s>";
  Request request = Greedy({}, 4);
  request.prompt = text;
  const auto plain = engine->Prepare(request).value();
  EXPECT_EQ(plain.prompt, *engine->Tokenize(text));
  EXPECT_EQ(std::count(plain.prompt.begin(), plain.prompt.end(), 2), 0);
  request.parse_special = true;
  const auto parsed = engine->Prepare(request).value();
  std::vector<int32_t> expected = *engine->Tokenize("Once upon a time");
  expected.insert(expected.begin() + 1, 2);
  expected.push_back(2);
  EXPECT_EQ(parsed.prompt, expected);
  EXPECT_EQ(Ask(*engine, request).ids.size(), 4u);
  request.prompt = expected;
  EXPECT_EQ(GetErrorDetail(engine->Prepare(request).status()).field, "parse_special");
}

TEST_F(EngineTest, APromptOfWholeBlocksStillComputesItsLastOne) {
  const auto engine = Start(OptionsFor(model_));
  const Request request = Greedy(Prompt(64, 4), 3);
  const auto first = Ask(*engine, request);
  const auto second = Ask(*engine, request);
  EXPECT_EQ(second.finished->cached_tokens, 48);
  EXPECT_EQ(second.ids, first.ids);
}

TEST_F(EngineTest, AStopIdEndsTheAnswerAndIsNotPartOfIt) {
  const auto engine = Start(OptionsFor(model_));
  Request request = Greedy(Prompt(50, 5), 20);
  const auto free = Ask(*engine, request);
  request.stopping.stop_ids = {free.ids[6]};
  const auto stopped = Ask(*engine, request);
  const auto first = std::find(free.ids.begin(), free.ids.end(), free.ids[6]);
  EXPECT_EQ(stopped.ids, std::vector<int32_t>(free.ids.begin(), first));
  EXPECT_EQ(stopped.finished->reason, FinishReason::kStopToken);
  EXPECT_EQ(stopped.finished->matched_id, free.ids[6]);
}

TEST_F(EngineTest, TheTokenThatEndsAnAnswerIsAmongItsIdsIfAskedFor) {
  const auto engine = Start(OptionsFor(model_));
  Request request = Greedy(Prompt(50, 5), 20);
  const int32_t stop = Ask(*engine, request).ids[6];
  request.stopping.stop_ids = {stop};
  request.output.logprobs = 0;
  const auto without = Ask(*engine, request);
  request.output.end_id = true;
  const auto with = Ask(*engine, request);
  ASSERT_EQ(with.ids.size(), without.ids.size() + 1);
  EXPECT_EQ(with.ids.back(), stop);
  EXPECT_EQ(static_cast<int32_t>(with.ids.size()), with.finished->output_tokens);
  ASSERT_EQ(with.logprobs.size(), with.ids.size());
  EXPECT_EQ(with.logprobs.back().id, stop);
  EXPECT_EQ(with.text, without.text);
}

TEST_F(EngineTest, AStopStringCutsTheTextBeforeIt) {
  const auto engine = Start(OptionsFor(model_));
  Request request = Greedy(Prompt(50, 6), 30);
  const std::string text = Ask(*engine, request).text;
  ASSERT_GT(text.size(), 20u);
  size_t middle = 10;
  while ((static_cast<unsigned char>(text[middle]) & 0xC0) == 0x80) ++middle;
  size_t end = middle + 3;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
  const std::string stop = text.substr(middle, end - middle);
  request.stopping.stop_strings = {stop};
  const auto stopped = Ask(*engine, request);
  EXPECT_EQ(stopped.text, text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped.finished->reason, FinishReason::kStopString);
  EXPECT_EQ(stopped.finished->matched_stop, stop);
  request.stopping.include_stop = true;
  EXPECT_EQ(Ask(*engine, request).text, text.substr(0, text.find(stop) + stop.size()));
}

TEST_F(EngineTest, EndOfTextWaitsForMinTokens) {
  const auto engine = Start(OptionsFor(model_));
  Request request = Greedy(Prompt(20, 7), 12);
  request.stopping.ignore_eos = false;
  request.sampling.bias = {{2, 100.0f}};  // end of text, at once
  const auto eager = Ask(*engine, request);
  EXPECT_EQ(eager.finished->reason, FinishReason::kEndOfText);
  EXPECT_EQ(eager.finished->output_tokens, 1);
  EXPECT_TRUE(eager.text.empty());
  request.stopping.min_tokens = 5;
  const auto patient = Ask(*engine, request);
  EXPECT_EQ(patient.finished->output_tokens, 6);
  EXPECT_EQ(std::count(patient.ids.begin(), patient.ids.end(), 2), 0);
  request.stopping.ignore_eos = true;
  EXPECT_EQ(Ask(*engine, request).finished->reason, FinishReason::kLength);
}

TEST_F(EngineTest, LogprobsAreTheModelsOwnAndDescend) {
  const auto engine = Start(OptionsFor(model_));
  Request request = Greedy(Prompt(40, 8), 5);
  request.output.logprobs = 4;
  request.output.prompt_logprobs = 2;
  const auto answer = Ask(*engine, request);
  ASSERT_EQ(answer.logprobs.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    const TokenDetail& detail = answer.logprobs[i];
    EXPECT_EQ(detail.id, answer.ids[i]);
    ASSERT_EQ(detail.top.size(), 4u);
    EXPECT_EQ(detail.top[0].id, detail.id) << "greedy takes the most probable";
    EXPECT_FLOAT_EQ(detail.top[0].logprob, detail.logprob);
    for (size_t j = 1; j < 4; ++j) EXPECT_GE(detail.top[j - 1].logprob, detail.top[j].logprob);
  }
  std::vector<int32_t> prompt_ids;
  for (const PrefillEvent& event : answer.prefill) {
    for (const TokenDetail& detail : event.prompt_logprobs) {
      EXPECT_LT(detail.logprob, 0.0f);
      EXPECT_EQ(detail.top.size(), 2u);
      prompt_ids.push_back(detail.id);
    }
  }
  const auto prompt = std::get<1>(request.prompt);
  EXPECT_EQ(prompt_ids, std::vector<int32_t>(prompt.begin() + 1, prompt.end()));
}

TEST_F(EngineTest, ASeedDecidesTheAnswer) {
  const auto engine = Start(OptionsFor(model_));
  Request request = Greedy(Prompt(30, 9), 24);
  request.sampling.temperature = 1.5f;
  request.sampling.seed = 1;
  const auto first = Ask(*engine, request);
  EXPECT_EQ(Ask(*engine, request).ids, first.ids);
  request.sampling.seed = 2;
  EXPECT_NE(Ask(*engine, request).ids, first.ids);
  request.sampling.seed.reset();
  const auto drawn = Ask(*engine, request);
  request.sampling.seed = drawn.started[0].seed;
  EXPECT_EQ(Ask(*engine, request).ids, drawn.ids) << "the seed named in the answer repeats it";
}

TEST_F(EngineTest, CancellingFreesTheBlocksWhereverTheRequestStands) {
  EngineOptions options = OptionsFor(model_);
  options.max_running = 1;
  const auto engine = Start(options);
  const auto decoding = std::make_shared<testing::Recorder>();
  const auto running = testing::Submit(*engine, Greedy(Prompt(40, 1), 3000), decoding).value();
  decoding->WaitForIds(3);
  const auto queued = std::make_shared<testing::Recorder>();
  const auto waiting = testing::Submit(*engine, Greedy(Prompt(40, 2), 100), queued).value();
  engine->Cancel(waiting);
  EXPECT_TRUE(absl::IsCancelled(queued->Wait().status));
  EXPECT_TRUE(queued->SoFar().started.empty());
  engine->Cancel(running);
  const auto answer = decoding->Wait();
  EXPECT_TRUE(absl::IsCancelled(answer.status));
  EXPECT_GE(answer.so_far.output_tokens, 3);
  WaitUntilIdle(*engine);
  EXPECT_EQ(engine->Snapshot().blocks_used, 0);
  engine->Cancel(12345);  // nobody: ignored
  EXPECT_TRUE(Ask(*engine, Greedy(Prompt(10, 3), 2)).finished);
}

TEST_F(EngineTest, ADeadlineEndsARequestInTheQueueAndInTheAnswer) {
  EngineOptions options = OptionsFor(model_);
  options.max_running = 1;
  const auto engine = Start(options);
  Request past = Greedy(Prompt(10, 1), 2);
  past.deadline = Clock::now() - milliseconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Ask(*engine, past).status));

  Request lengthy = Greedy(Prompt(40, 1), 4000);
  lengthy.deadline = Clock::now() + milliseconds(150);
  const auto decoding = Submit(*engine, lengthy);
  decoding->WaitForIds(1);
  Request behind = Greedy(Prompt(40, 2), 10);
  behind.deadline = Clock::now() + milliseconds(50);
  const auto queued = Submit(*engine, behind);
  const auto late = queued->Wait();
  EXPECT_THAT(late.status, FailsFor(absl::StatusCode::kDeadlineExceeded, "DEADLINE_QUEUED"));
  const auto answer = decoding->Wait();
  EXPECT_THAT(answer.status, FailsFor(absl::StatusCode::kDeadlineExceeded, "DEADLINE_DECODING"));
  EXPECT_FALSE(answer.ids.empty());
  WaitUntilIdle(*engine);
  EXPECT_EQ(engine->Snapshot().blocks_used, 0);
}

TEST_F(EngineTest, ARequestWithoutADeadlineGetsTheServers) {
  EngineOptions options = OptionsFor(model_);
  options.limits.default_deadline = milliseconds(100);
  const auto engine = Start(options);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Ask(*engine, Greedy(Prompt(10, 1), 4000)).status));
}

TEST_F(EngineTest, TheServersDeadlineBeginsWhenTheCallComes) {
  EngineOptions options = OptionsFor(model_);
  options.limits.default_deadline = std::chrono::hours(1);
  const auto engine = Start(options);
  Request waited = Greedy(Prompt(10, 1), 1);
  waited.arrival = Clock::now() - std::chrono::minutes(59);
  const auto prepared = engine->Prepare(waited).value();
  EXPECT_EQ(prepared.arrival, *waited.arrival);
  EXPECT_EQ(prepared.request.deadline, *waited.arrival + options.limits.default_deadline);
  waited.arrival = Clock::now() - std::chrono::minutes(61);
  EXPECT_EQ(Reason(engine->Prepare(waited).status()), "DEADLINE_PASSED");
}

TEST_F(EngineTest, ADeadlineThatCannotBeMetIsRefusedAtOnce) {
  EngineOptions options = OptionsFor(model_);
  options.max_running = 1;
  options.max_step_tokens = 16;
  const auto engine = Start(options);
  EXPECT_TRUE(Ask(*engine, Greedy(Prompt(500, 1), 1)).finished);  // the engine knows its speed now
  std::vector<std::shared_ptr<testing::Recorder>> others;
  for (uint32_t i = 0; i < 100; ++i) others.push_back(Submit(*engine, Greedy(Prompt(4000, i), 1)));
  Request hurried = Greedy(Prompt(4000, 101), 1);
  hurried.deadline = Clock::now() + milliseconds(30);
  const auto refused = Ask(*engine, hurried);
  EXPECT_THAT(refused.status, FailsFor(absl::StatusCode::kResourceExhausted, "DEADLINE_TOO_SHORT"));
  EXPECT_TRUE(GetErrorDetail(refused.status).retry_after);
  EXPECT_TRUE(refused.started.empty());
  engine->Drain(Clock::now());
}

TEST_F(EngineTest, ACachedPromptMeetsADeadlineThatItsPrefillWouldNot) {
  EngineOptions options = OptionsFor(model_);
  options.max_step_tokens = 64;
  const auto engine = Start(options);
  Request request = Greedy(Prompt(4000, 1), 1);
  const auto begin = Clock::now();
  EXPECT_TRUE(Ask(*engine, request).finished);
  const auto first = Clock::now() - begin;
  request.deadline = Clock::now() + first / 4;
  EXPECT_TRUE(Ask(*engine, request).finished) << "all but its last block is cached";
  std::get<1>(request.prompt)[0] = 5;
  request.deadline = Clock::now() + first / 4;
  EXPECT_EQ(Reason(Ask(*engine, request).status), "DEADLINE_TOO_SHORT");
}

TEST_F(EngineTest, TheQueueIsBoundedByRequestsAndByTokens) {
  EngineOptions options = OptionsFor(model_);
  options.max_running = 1;
  options.limits.max_waiting_requests = 3;
  options.limits.max_waiting_tokens = 250;
  const auto engine = Start(options);
  const auto running = Submit(*engine, Greedy(Prompt(10, 1), 4000));
  running->WaitForIds(2);  // by the second step the queue is known to be empty
  const auto first = Submit(*engine, Greedy(Prompt(100, 2), 1));
  const auto second = Submit(*engine, Greedy(Prompt(100, 3), 1));
  const auto tokens = Ask(*engine, Greedy(Prompt(100, 4), 1));
  EXPECT_THAT(tokens.status, FailsFor(absl::StatusCode::kResourceExhausted, "TOKEN_BUDGET"));
  const auto third = Submit(*engine, Greedy(Prompt(10, 5), 1));
  const auto full = Ask(*engine, Greedy(Prompt(10, 6), 1));
  EXPECT_THAT(full.status, FailsFor(absl::StatusCode::kResourceExhausted, "QUEUE_FULL"));
  EXPECT_TRUE(GetErrorDetail(full.status).retry_after);
  engine->Drain(Clock::now());
  for (const auto& recorder : {running, first, second, third}) {
    EXPECT_TRUE(absl::IsUnavailable(recorder->Wait().status));
  }
}

TEST_F(EngineTest, ASlowReaderIsPausedThenCutOffAndItsBatchMatesGoOn) {
  EngineOptions options = OptionsFor(model_);
  options.limits.max_congestion = milliseconds(200);
  const auto engine = Start(options);
  const auto slow = std::make_shared<testing::Recorder>();
  ASSERT_TRUE(testing::Submit(*engine, Greedy(Prompt(20, 1), 3000), slow).ok());
  slow->WaitForIds(5);
  const auto begin = Clock::now();
  slow->SetCongested(true);
  const auto mate = Ask(*engine, Greedy(Prompt(20, 2), 50));
  EXPECT_EQ(mate.ids.size(), 50u);
  EXPECT_THAT(slow->Wait().status, FailsFor(absl::StatusCode::kResourceExhausted, "SLOW_CONSUMER"));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15)) << "not at its deadline";

  const auto recovered = std::make_shared<testing::Recorder>();
  ASSERT_TRUE(testing::Submit(*engine, Greedy(Prompt(20, 3), 40), recovered).ok());
  recovered->SetCongested(true);
  std::this_thread::sleep_for(milliseconds(50));
  recovered->SetCongested(false);
  EXPECT_EQ(recovered->Wait().ids.size(), 40u) << "a reader that catches up loses nothing";
}

TEST_F(EngineTest, ANonfiniteWeightOfAnyFormatIsRefusedAndNamed) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const TinyModel model({.tied = false, .nan_embedding = 777, .dtype = dtype});
    const absl::Status refused = Engine::Create(OptionsFor(model)).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << Name(dtype) << ": " << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("model.embed_tokens.weight"));
  }
}

// bad input: Device | logits of one sequence NaN or infinite | INTERNAL, NONFINITE_LOGITS for that
//   one; others go on | FailpointCall.LogitsThatAreNotNumbersLoseOneRequest
TEST_F(EngineTest, OneSequencesNanIsItsOwn) {
  const TinyModel model({.tied = false, .nan_embedding = 777, .dtype = DType::kFloat16});
  EngineOptions options = OptionsFor(model);
  EXPECT_TRUE(absl::IsFailedPrecondition(Engine::Create(options).status()))
      << "NaN weights are refused unless allowed";
  options.allow_nonfinite_weights = true;
  const auto engine = Start(options);
  auto poisoned_prompt = Prompt(40, 1);
  poisoned_prompt[20] = 777;
  const auto answers = testing::AskTogether(
      *engine, {Greedy(Prompt(60, 2), 30), Greedy(poisoned_prompt, 30), Greedy(Prompt(10, 3), 30)});
  EXPECT_EQ(answers[0].ids.size(), 30u);
  EXPECT_EQ(answers[2].ids.size(), 30u);
  EXPECT_THAT(answers[1].status, FailsFor(absl::StatusCode::kInternal, "NONFINITE_LOGITS"));
  // The poisoned prompt's blocks may be shared by their key, never by anyone else.
  EXPECT_EQ(Ask(*engine, Greedy(Prompt(60, 2), 30)).ids, answers[0].ids);
}

TEST_F(EngineTest, MoreThanThePoolCanHoldIsRefusedWithBothNumbers) {
  const auto engine = Start(testing::WithBlocks(OptionsFor(model_), 10));
  const auto answer = Ask(*engine, Greedy(Prompt(100, 1), 61));
  EXPECT_THAT(answer.status, FailsFor(absl::StatusCode::kResourceExhausted, "KV_POOL_TOO_SMALL"));
  EXPECT_EQ(GetErrorDetail(answer.status).metadata.at("pool_tokens"), "160");
  EXPECT_EQ(Ask(*engine, Greedy(Prompt(100, 1), 60)).ids.size(), 60u) << "what just fits, runs";
}

TEST_F(EngineTest, ContextIsNeverCutSilently) {
  const auto engine = Start(OptionsFor(model_));
  const auto answer = Ask(*engine, Greedy(Prompt(4000, 1), 97));
  EXPECT_THAT(answer.status, FailsFor(kInvalid, "CONTEXT_TOO_LONG"));
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("4000"));
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("4096"));
}

TEST_F(EngineTest, APlainCheckpointIsSparseAndSaysSo) {
  const TinyModel plain({.has_predictor = false});
  EngineOptions options = OptionsFor(plain);
  const auto engine = Start(options);
  Request request = Greedy(Prompt(300, 1), 8);
  request.attention.settings.offset = -1.0f;
  const auto answer = Ask(*engine, request);
  const ResolvedAttention& attention = answer.started[0].attention;
  EXPECT_EQ(attention.mode, AttentionMode::kDynamic);
  EXPECT_TRUE(attention.options.relative);
  EXPECT_FLOAT_EQ(attention.options.relative_c, -4.3f);
  EXPECT_EQ(answer.ids.size(), 8u);
  // 7 decode rows of 2 layers and 2 KV heads. Their 18 full blocks of 16 tokens, of which 3 are
  // always read, have records of 100 bytes; keys of 32 floats are scored: those 3 blocks and the
  // tail of 13 tokens and more.
  const AttentionSums& counted = answer.finished->attention;
  int64_t expected = 0;
  for (int64_t kv_len = 301; kv_len < 308; ++kv_len) {
    const int64_t full = kv_len / 16;
    expected += 4 * (full * 100 + (kv_len - (full - 3) * 16) * 32 * 4);
  }
  EXPECT_EQ(counted.index_bytes_read, expected);
  EXPECT_LT(counted.union_density(), 1.0);

  options.index = IndexKind::kMoment;
  const auto moment = Start(options);
  request.attention = {};
  EXPECT_EQ(Ask(*moment, request).started[0].attention.mode, AttentionMode::kFull);
  request.attention.mode = AttentionMode::kDynamic;
  const absl::Status dynamic = Ask(*moment, request).status;
  EXPECT_TRUE(absl::IsFailedPrecondition(dynamic));
  EXPECT_THAT(std::string(dynamic.message()), HasSubstr("predicts no thresholds"));
}

TEST_F(EngineTest, AModelWithoutATokenizerIsServedByIds) {
  Request request = Greedy(Prompt(100, 1), 8);
  request.output.logprobs = 1;
  const auto expected = Ask(*Start(OptionsFor(model_)), request);
  std::filesystem::remove(model_.path() + "/tokenizer.model");
  const auto engine = Start(OptionsFor(model_));
  const auto answer = Ask(*engine, request);
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.ids, expected.ids);
  EXPECT_EQ(answer.text, "");

  const std::pair<const char*, std::function<void(Request&)>> cases[] = {
      {"text: send token_ids", [](Request& r) { r.prompt = std::string("hello"); }},
      {"stopping.stop_strings", [](Request& r) { r.stopping.stop_strings = {"x"}; }},
      {"output.token_ids", [](Request& r) { r.output.ids = false; }}};
  for (const auto& [sentence, change] : cases) {
    Request changed = request;
    change(changed);
    const absl::Status refused = Ask(*engine, changed).status;
    EXPECT_THAT(refused, FailsFor(absl::StatusCode::kFailedPrecondition, "UNSUPPORTED_BY_MODEL"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(sentence));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("tokenizer.json"));
  }
}

TEST_F(EngineTest, DrainingFinishesWhatRunsAndRefusesWhatComes) {
  const auto engine = Start(OptionsFor(model_));
  const auto running = Submit(*engine, Greedy(Prompt(20, 1), 60));
  running->WaitForStart();
  engine->Drain(Clock::now() + std::chrono::minutes(1));
  EXPECT_EQ(running->Wait().ids.size(), 60u);
  const auto refused = Ask(*engine, Greedy(Prompt(20, 1), 60));
  EXPECT_THAT(refused.status, FailsFor(absl::StatusCode::kUnavailable, "DRAINING"));
}

class StepCounter : public Observer {
 public:
  void OnStep(const StepReport& report) override {
    ++steps;
    rows += report.prefill_rows + report.decode_rows;
    const int32_t blocks = report.blocks_used + report.blocks_cached + report.blocks_free;
    blocks_constant = blocks_constant && (blocks_seen == 0 || blocks == blocks_seen);
    blocks_seen = blocks;
  }
  void OnRequestEnd(const Request& request, const absl::Status& status,
                    const FinishedEvent& outcome) override {
    ids.push_back(request.id);
    ok += status.ok();
    tokens += outcome.output_tokens;
  }
  int steps = 0;
  int rows = 0;
  int ok = 0;
  int tokens = 0;
  int32_t blocks_seen = 0;
  bool blocks_constant = true;
  std::vector<std::string> ids;
};

TEST_F(EngineTest, AnObserverSeesEveryStepAndEveryEnding) {
  StepCounter counter;
  {
    const auto engine = Start(OptionsFor(model_), &counter);
    Ask(*engine, Greedy(Prompt(100, 1), 10));
    WaitUntilIdle(*engine);
  }
  EXPECT_EQ(counter.steps, 10);
  EXPECT_EQ(counter.rows, 109);
  EXPECT_EQ(counter.ok, 1);
  EXPECT_EQ(counter.tokens, 10);
  EXPECT_TRUE(counter.blocks_constant);
  EXPECT_EQ(counter.ids, std::vector<std::string>{"test"});
}

}  // namespace
}  // namespace eta
