// Answers whose length nobody named, special tokens in texts, and what tokens read as.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/testing/engine/engine_run.h"

namespace eta {
namespace {

using testing::Ask;
using testing::Greedy;
using testing::OptionsFor;
using testing::Prompt;
using testing::Start;
using testing::TinyModel;
using testing::WithBlocks;

class EngineTokensTest : public ::testing::Test {
 protected:
  TinyModel model_;
};

TEST_F(EngineTokensTest, WhoNamesNoLengthGetsWhatTheContextLeaves) {
  EngineOptions options = OptionsFor(model_);
  options.limits.max_output_tokens = 200;
  const auto engine = Start(options);
  const auto most = [&](int32_t prompt_tokens, int32_t min_tokens = 0) {
    Request request = Greedy(Prompt(prompt_tokens, 1), StoppingOptions().max_tokens);
    request.stopping.fit_max_tokens = true;
    request.stopping.min_tokens = min_tokens;
    const auto prepared = engine->Prepare(std::move(request));
    return prepared.ok() ? std::to_string(prepared->request.stopping.max_tokens)
                         : GetErrorDetail(prepared.status()).reason;
  };
  EXPECT_EQ(most(10), "200") << "of an answer there are no more";
  EXPECT_EQ(most(4000), "96");
  EXPECT_EQ(most(4000, 96), "96");
  EXPECT_EQ(most(4000, 97), "CONTEXT_TOO_LONG") << "that many were asked for";
  EXPECT_EQ(most(4095), "1");
  EXPECT_EQ(most(4096), "CONTEXT_TOO_LONG");
  Request full = Greedy(Prompt(4096, 1), 256);
  full.stopping.fit_max_tokens = true;
  EXPECT_EQ(GetErrorDetail(engine->Prepare(full).status()).field, "token_ids") << "not max_tokens";
  Request request = Greedy(Prompt(4090, 1), 256);
  request.stopping.fit_max_tokens = true;
  const auto answer = Ask(*engine, request);
  EXPECT_EQ(answer.started.at(0).max_tokens, 6);
  EXPECT_EQ(answer.ids.size(), 6u);
}

TEST_F(EngineTokensTest, WhoNamesNoLengthGetsWhatTheTenantsShareAndTheCacheLeave) {
  const auto engine = Start(WithBlocks(OptionsFor(model_), 10));  // of 16 tokens
  const auto ask = [&](int32_t prompt_tokens, const TenantShare& share, int32_t min_tokens = 0) {
    Request request = Greedy(Prompt(prompt_tokens, 1), StoppingOptions().max_tokens);
    request.stopping.fit_max_tokens = true;
    request.stopping.min_tokens = min_tokens;
    request.share = share;
    return Ask(*engine, request);
  };
  const auto most = [&](int32_t prompt_tokens, const TenantShare& share) {
    const auto answer = ask(prompt_tokens, share);
    return answer.started.empty() ? 0 : answer.started[0].max_tokens;
  };
  EXPECT_EQ(most(50, {.max_kv_tokens = 100}), 50);
  EXPECT_EQ(most(50, {.burst_tokens = 70}), 20);
  EXPECT_EQ(most(50, {.max_kv_tokens = 60, .burst_tokens = 51}), 1);
  EXPECT_EQ(most(50, {}), 110) << "the cache has 160";
  EXPECT_EQ(most(159, {}), 1);
  EXPECT_EQ(most(50, {.max_kv_tokens = 1000}), 110);

  ErrorDetail detail = GetErrorDetail(ask(50, {.max_kv_tokens = 50}).status);
  EXPECT_EQ(detail.reason, "TENANT_KV");
  EXPECT_EQ(detail.field, "token_ids") << "nobody named a max_tokens";
  EXPECT_EQ(detail.metadata.at("tokens"), "51");
  detail = GetErrorDetail(ask(50, {.max_kv_tokens = 60}, 11).status);
  EXPECT_EQ(detail.reason, "TENANT_KV");
  EXPECT_EQ(detail.field, "stopping.min_tokens");
  const absl::Status full = ask(160, {}).status;
  EXPECT_EQ(GetErrorDetail(full).reason, "KV_POOL_TOO_SMALL");
  EXPECT_EQ(std::string(full.message()).find("max_tokens"), std::string::npos) << full;
}

TEST_F(EngineTokensTest, ShowsSpecialTokensOnRequest) {
  const auto engine = Start(OptionsFor(model_));
  Request request = Greedy(Prompt(20, 7), 3);
  request.sampling.bias = {{2, 100.0f}};  // end of text, again and again
  EXPECT_EQ(Ask(*engine, request).text, "");
  request.output.special_tokens = true;
  EXPECT_EQ(Ask(*engine, request).text, "</s></s></s>");
  request.stopping.stop_strings = {"s></"};
  const auto stopped = Ask(*engine, request);
  EXPECT_EQ(stopped.text, "</");
  EXPECT_EQ(stopped.finished->reason, FinishReason::kStopString);
  request.stopping.stop_strings.clear();
  request.stopping.ignore_eos = false;
  EXPECT_EQ(Ask(*engine, request).text, "") << "a stop token has no text";
  request.stopping.include_stop = true;
  const auto ended = Ask(*engine, request);
  EXPECT_EQ(ended.text, "</s>");
  EXPECT_EQ(ended.finished->reason, FinishReason::kEndOfText);
  EXPECT_EQ(ended.finished->matched_id, 2);
  EXPECT_TRUE(ended.ids.empty());
}

// bad input: Prompts | Detokenize: no ids, ids outside the vocabulary, over the context, of too
//   much text | INVALID_ARGUMENT, the field named | BadInputTest.IdsThatReadAsNothing
TEST_F(EngineTokensTest, TellsWhatTokensReadAs) {
  EngineOptions options = OptionsFor(model_);
  options.limits.max_prompt_bytes = 64;
  const auto engine = Start(options);
  const std::string text = "Once \xC3\xA9";
  std::vector<int32_t> ids = *engine->Tokenize(text);
  ids.push_back(2);
  EXPECT_EQ(engine->Detokenize(ids, /*special_tokens=*/false).value().text, text);
  const auto shown = engine->Detokenize(ids, /*special_tokens=*/true);
  EXPECT_EQ(shown->text, "<s>" + text + "</s>");
  EXPECT_EQ(shown->tokens.text, "<s>" + text + "</s>");
  ASSERT_EQ(shown->tokens.ends.size(), ids.size());
  EXPECT_EQ(shown->tokens.ends.front(), 3);
  EXPECT_EQ(shown->tokens.ends.back(), static_cast<int32_t>(shown->tokens.text.size()));
  ASSERT_EQ(shown->tokens.special.size(), ids.size());
  EXPECT_TRUE(shown->tokens.special.front() && shown->tokens.special.back());
  EXPECT_FALSE(shown->tokens.special[1]);

  const auto field = [&](std::vector<int32_t> bad) {
    return GetErrorDetail(engine->Detokenize(bad, true).status()).field;
  };
  EXPECT_EQ(field({}), "token_ids.ids");
  EXPECT_EQ(field({1, -1}), "token_ids.ids[1]");
  EXPECT_EQ(field({1, engine->info().config.vocab_size}), "token_ids.ids[1]");
  EXPECT_EQ(field(std::vector<int32_t>(4097, 1)), "token_ids.ids");
  EXPECT_EQ(field(std::vector<int32_t>(65, ids[1])), "token_ids.ids") << "too much text";
}

}  // namespace
}  // namespace eta
