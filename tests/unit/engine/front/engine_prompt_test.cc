// What the engine gets is checked once, in Prepare, whatever it was made of: at least one token,
// and nothing that a prompt says is left out.
#include <memory>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/tokenizer_json.h"

namespace eta {
namespace {

using testing::Ask;
using ::testing::ElementsAre;
using testing::Greedy;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::OptionsFor;
using testing::Start;
using testing::TinyModel;

constexpr char kTrimmedTemplate[] = "{% for m in messages %}{{ m.content | trim }}{% endfor %}";
constexpr char kContentsTemplate[] = "{% for m in messages %}{{ m['content'] }}{% endfor %}";

// Bytes without those of control characters; nothing begins a text. As SmolLM2's vocabulary.
std::string BytesWithGapsJson(bool strips = false) {
  std::vector<std::string> tokens = {"\xC4\xA0"};  // a space
  for (char c = '!'; c <= '~'; ++c) tokens.emplace_back(1, c);
  TokenizerJson file(tokens, {});
  file.root["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  file.root["decoder"] = {{"type", "ByteLevel"}};
  if (strips) {
    file.root["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  }
  return file.Dump();
}

Request TextPrompt(std::string text) {
  Request request = Greedy({}, 2);
  request.prompt = std::move(text);
  return request;
}

Request ChatOf(std::vector<std::string> texts) {
  Chat chat;
  for (std::string& text : texts) {
    chat.messages.push_back(
        {.role = "user", .content = std::move(text), .name = {}, .tool_call_id = {}});
  }
  Request request = Greedy({}, 2);
  request.prompt = std::move(chat);
  return request;
}

class EnginePromptTest : public ::testing::Test {
 protected:
  void Begin(const std::string& tokenizer, const std::string& chat_template = kContentsTemplate) {
    model_ = std::make_unique<TinyModel>(
        testing::TinyModelOptions{.chat_template = chat_template, .tokenizer_json = tokenizer});
    engine_ = Start(OptionsFor(*model_));
  }
  void ExpectRefused(const Request& request, const std::string& field, const std::string& why) {
    const absl::Status status = engine_->Prepare(request).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(GetErrorDetail(status).reason, "INVALID_FIELD");
    EXPECT_EQ(GetErrorDetail(status).field, field);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }

  std::unique_ptr<TinyModel> model_;
  std::unique_ptr<Engine> engine_;
};

// bad input: Prompts | neither text nor token ids; a text or chat that becomes no token |
//   INVALID_ARGUMENT naming the field | BadInputTest.EmptyPrompts
TEST_F(EnginePromptTest, ABlankThatBecomesNoTokenIsRefused) {
  Begin(BytesWithGapsJson(/*strips=*/true));
  ExpectRefused(TextPrompt("  "), "text", "makes no token of it");
  ExpectRefused(ChatOf({" ", " "}), "chat", "makes no token of it");
  ExpectRefused(Greedy({}, 2), "token_ids.ids", "must not be empty");
  EXPECT_EQ(Ask(*engine_, TextPrompt(" a ")).ids.size(), 2u) << "and others are served";
}

// bad input: Prompts | a byte that no token of the model stands for, or only one that is structure
//   | INVALID_ARGUMENT naming field, byte and offset: nothing is left out |
//   FamilyProcessTest.AByteThatNoTokenStandsForIsRefusedAndEndsNothing
TEST_F(EnginePromptTest, AByteThatNoTokenStandsForIsNamed) {
  Begin(BytesWithGapsJson());
  ExpectRefused(TextPrompt("\x04"), "text", "no token for byte 0x04, at offset 0");
  ExpectRefused(TextPrompt("a\x04z"), "text", "no token for byte 0x04, at offset 1");
  ExpectRefused(ChatOf({"ab", "c\x16"}), "chat.messages[1].text", "byte 0x16, at offset 1");
  const absl::Status sample = engine_->Tokenize("ab\x1d").status();
  EXPECT_EQ(GetErrorDetail(sample).field, "text");
  EXPECT_THAT(std::string(sample.message()), HasSubstr("byte 0x1D, at offset 2"));
  EXPECT_EQ(Ask(*engine_, TextPrompt("az")).ids.size(), 2u);
}

TEST_F(EnginePromptTest, AMessageThatTheTemplateMakesWholeIsNotNamed) {
  Begin(BytesWithGapsJson(), kTrimmedTemplate);
  EXPECT_EQ(Ask(*engine_, ChatOf({"hi\x1d"})).ids.size(), 2u) << "trimmed";
  const Request request = ChatOf({"hi\x1d", "a\x04"});
  ExpectRefused(request, "chat.messages[1].text", "byte 0x04, at offset 1");
  EXPECT_EQ(GetErrorDetail(engine_->Prepare(request).status()).metadata.at("no_token_for"),
            "byte 0x04");
  ExpectRefused(ChatOf({"\x1dhi\x04"}), "chat", "byte 0x04, at offset 2");
}

TEST_F(EnginePromptTest, WhatWasNotPreparedMustHaveATokenToo) {
  Begin(BytesWithGapsJson());
  PreparedRequest prepared = *engine_->Prepare(TextPrompt("a"));
  prepared.prompt.clear();
  const auto recorder = std::make_shared<testing::Recorder>();
  EXPECT_TRUE(absl::IsInvalidArgument(engine_->Submit(std::move(prepared), recorder).status()));
}

TEST_F(EnginePromptTest, ACutPromptIsItsLastTokens) {
  Begin(BytesWithGapsJson());
  Request text = TextPrompt("!\"#");
  text.keep_last = 2;
  EXPECT_THAT(engine_->Prepare(text).value().prompt, ElementsAre(2, 3));
  text.keep_last = 4;
  EXPECT_THAT(engine_->Prepare(text).value().prompt, ElementsAre(1, 2, 3));
  const int32_t context = engine_->limits().max_context;
  Request ids = Greedy(std::vector<int32_t>(static_cast<size_t>(context) + 9, 5), 2);
  ASSERT_FALSE(engine_->Check(ids).ok());
  ids.prompt = std::vector<int32_t>(static_cast<size_t>(context) + 9, 5);
  ids.keep_last = context - 2;
  EXPECT_EQ(engine_->Check(ids).value(), context - 2) << "what is cut off needs no room";
  EXPECT_EQ(engine_->Prepare(ids).value().prompt_tokens(), context - 2);
  ids.keep_last = 0;
  EXPECT_EQ(GetErrorDetail(engine_->Prepare(ids).status()).field, "keep_last");
}

TEST_F(EnginePromptTest, ThereIsOneBeginning) {
  Begin(BytesWithGapsJson());
  EXPECT_EQ(engine_->info().config.bos_id, 1) << "config.json names one";
  EXPECT_THAT(engine_->info().beginning, IsEmpty()) << "the tokenizer puts none in front";
  EXPECT_THAT(engine_->Prepare(TextPrompt("!")).value().prompt, ElementsAre(1));
  EXPECT_THAT(*engine_->Tokenize("!"), ElementsAre(1));
  const TinyModel embedded;
  EXPECT_THAT(Start(OptionsFor(embedded))->info().beginning, ElementsAre(1));
}

}  // namespace
}  // namespace eta
