#include "service/generate/answer_plan.h"

#include <string>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/generate/convert.h"

namespace eta {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class AnswerPlanTest : public ::testing::Test {
 protected:
  AnswerPlanTest() {
    AnswerForm& form = model_.answer_form;
    form.shows_tools = true;
    form.calls = CallSyntax::kTagged;
    form.begin = "<tool_call>{\"name\": \"";
    form.middle = "\", \"arguments\": ";
    form.end = "}</tool_call>";
    form.reasoning_begin = "<think>";
    form.reasoning_end = "</think>";
    form.marks = {{.id = 4, .text = "<think>"}, {.id = 5, .text = "</think>"}};
    Chat chat;
    chat.messages.push_back({.role = "user", .content = "x"});
    chat.tools.push_back({.name = "weather"});
    request_.prompt = std::move(chat);
  }

  Chat& chat() { return std::get<Chat>(request_.prompt); }
  std::optional<AnswerReader::Options> Plan() {
    const auto plan = PlanAnswer(output_, model_, {}, request_, format_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *plan : std::nullopt;
  }
  std::string Field() {
    return GetErrorDetail(PlanAnswer(output_, model_, {}, request_, format_).status()).field;
  }

  EngineInfo model_;
  Request request_;
  v1::OutputOptions output_;
  std::optional<AnswerFormat> format_;
};

TEST_F(AnswerPlanTest, LooksForCallsOfTheToolsThereAre) {
  const auto plan = Plan();
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(plan->tools, ElementsAre("weather"));
  EXPECT_TRUE(plan->tell_reasoning);
  EXPECT_THAT(request_.output.marks, ElementsAre(4, 5));
  EXPECT_FALSE(format_.has_value());
}

TEST_F(AnswerPlanTest, WithoutToolsReasoningIsToldWhereThatIsAsked) {
  chat().tools.clear();
  EXPECT_FALSE(Plan().has_value());
  EXPECT_THAT(request_.output.marks, IsEmpty());
  output_.set_reasoning(true);
  EXPECT_THAT(Plan()->tools, IsEmpty());
  output_.clear_reasoning();
  format_ = AnswerFormat{.kind = AnswerFormatKind::kJsonObject};
  EXPECT_TRUE(Plan().has_value());
  EXPECT_EQ(format_->reasoning_begin, "<think>");
  EXPECT_EQ(format_->reasoning_end, "</think>");
  model_.answer_form.reasoning_begin.clear();
  EXPECT_FALSE(Plan().has_value());
}

TEST_F(AnswerPlanTest, WhereTheChoiceIsNoneNothingIsACall) {
  chat().tool_choice = ToolChoice::kNone;
  output_.set_reasoning(false);
  EXPECT_FALSE(Plan().has_value());
  format_ = AnswerFormat{.kind = AnswerFormatKind::kJsonObject};
  EXPECT_FALSE(Plan().has_value());
}

TEST_F(AnswerPlanTest, SpecialTokensThatAreShownAreLetters) {
  request_.output.special_tokens = true;
  EXPECT_THAT(Plan()->form.marks, IsEmpty());
  EXPECT_THAT(request_.output.marks, IsEmpty());
}

TEST_F(AnswerPlanTest, WithoutTextNothingIsRead) {
  request_.output.text = false;
  EXPECT_FALSE(Plan().has_value());
}

TEST_F(AnswerPlanTest, CallsThatMustBeHaveAFormat) {
  chat().tool_choice = ToolChoice::kRequired;
  EXPECT_TRUE(Plan().has_value());
  ASSERT_TRUE(format_.has_value());
  EXPECT_EQ(format_->kind, AnswerFormatKind::kStructuralTag);
  format_.reset();
  chat().tools[0].parameters_json = "no JSON";
  EXPECT_EQ(Field(), "chat.tools[0].parameters");
}

// bad input: Chats | a `format` beside tools that may be called; `output.reasoning` without a chat
// |
//   INVALID_ARGUMENT, the field named | BadChatTest.FieldsOfToolsAreNamed
TEST_F(AnswerPlanTest, NamesWhatDoesNotGoTogether) {
  format_ = AnswerFormat{.kind = AnswerFormatKind::kJsonObject};
  EXPECT_EQ(Field(), "format");
  format_.reset();
  request_.prompt = std::string("text");
  EXPECT_FALSE(Plan().has_value());
  output_.set_reasoning(false);
  EXPECT_FALSE(Plan().has_value());
  output_.set_reasoning(true);
  EXPECT_EQ(Field(), "output.reasoning");
}

TEST(AnswerPart, IsOneMessageWhereItsReaderIsSlow) {
  const auto message = [](AnswerPart part) {
    v1::GenerateResponse made;
    Put(std::move(part), *made.mutable_delta());
    return made;
  };
  v1::GenerateResponse last = message({.text = "a", .reasoning = "r", .calls = {}});
  EXPECT_TRUE(Merge(last, message({.text = "b",
                                   .reasoning = "s",
                                   .calls = {{.id = "i", .name = "f", .arguments = "{"}}})));
  EXPECT_TRUE(
      Merge(last, message({.text = {},
                           .reasoning = {},
                           .calls = {{.arguments = "}"}, {.index = 1, .id = "j", .name = "g"}}})));
  EXPECT_TRUE(Merge(
      last, message({.text = "c", .reasoning = {}, .calls = {{.index = 1, .withdrawn = true}}})));
  const v1::Delta& delta = last.delta();
  EXPECT_EQ(delta.text(), "abc");
  EXPECT_EQ(delta.reasoning(), "rs");
  ASSERT_EQ(delta.tool_calls_size(), 2);
  EXPECT_EQ(delta.tool_calls(0).id(), "i");
  EXPECT_EQ(delta.tool_calls(0).arguments(), "{}");
  EXPECT_FALSE(delta.tool_calls(0).withdrawn());
  EXPECT_EQ(delta.tool_calls(1).name(), "g");
  EXPECT_TRUE(delta.tool_calls(1).withdrawn());
}

}  // namespace
}  // namespace eta
