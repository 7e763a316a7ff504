#include "engine/request/answers/tool_format.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/engine/tagged_form.h"

namespace eta {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::TaggedForm;

constexpr char kSchema[] = R"({"type":"object","properties":{"b":{},"a":{}}})";

Chat TwoTools() {
  Chat chat;
  chat.messages.push_back({.role = "user", .content = "x"});
  chat.tools = {{.name = "f", .parameters_json = kSchema}, {.name = "g"}};
  return chat;
}

std::string SourceOf(const Chat& chat, const AnswerForm& form) {
  const auto format = ToolFormat(chat, form);
  EXPECT_EQ(format.has_value(), WantsToolFormat(chat));
  if (!format) return "";
  EXPECT_EQ(format->kind, AnswerFormatKind::kStructuralTag);
  EXPECT_EQ(format->reasoning_begin, form.reasoning_begin);
  EXPECT_TRUE(format->of_tools);
  EXPECT_TRUE(nlohmann::json::accept(format->source)) << format->source;
  return format->source;
}

TEST(ToolFormat, BindsWhatMustBeACallOrIsStrict) {
  Chat chat = TwoTools();
  EXPECT_EQ(SourceOf(chat, TaggedForm()), "");
  chat.tool_choice = ToolChoice::kNone;
  chat.tools[0].strict = true;
  EXPECT_EQ(SourceOf(chat, TaggedForm()), "");
  chat.tool_choice = ToolChoice::kAuto;
  const std::string strict = SourceOf(chat, TaggedForm());
  EXPECT_THAT(strict, HasSubstr(R"("type":"triggered_tags","triggers":["<tool_call>"])"));
  EXPECT_THAT(strict, HasSubstr(std::string(R"("json_schema":)") + kSchema));
  EXPECT_THAT(strict, HasSubstr(R"("json_schema":{"type":"object"})")) << "of g, which is not";
  EXPECT_THAT(SourceOf(TwoTools(), TaggedForm()), "");
}

TEST(ToolFormat, IsCallsOfEachToolOrOfOne) {
  Chat chat = TwoTools();
  chat.tool_choice = ToolChoice::kRequired;
  const std::string both = SourceOf(chat, TaggedForm());
  EXPECT_THAT(both, HasSubstr(R"("type":"plus")"));
  EXPECT_THAT(both, HasSubstr(R"(\"name\": \"f\", \"arguments\": )"));
  EXPECT_THAT(both, HasSubstr(R"(\"name\": \"g\", \"arguments\": )"));
  EXPECT_THAT(both, HasSubstr(std::string(R"("json_schema":)") + kNoParameters));
  chat.tool_choice.reset();
  chat.tool_to_call = "g";
  EXPECT_THAT(SourceOf(chat, TaggedForm()), Not(HasSubstr(R"(\"f\")")));
}

TEST(ToolFormat, MarksThatAreSpecialTokensAreTheseTokens) {
  AnswerForm form = TaggedForm();
  form.marks = {{.id = 41, .text = kTagBegin}, {.id = 42, .text = kTagEnd}};
  Chat chat = TwoTools();
  chat.tool_choice = ToolChoice::kRequired;
  const std::string source = SourceOf(chat, form);
  EXPECT_THAT(source, HasSubstr(R"({"type":"token","token":41})"));
  EXPECT_THAT(source, HasSubstr(R"({"type":"token","token":42})"));
  EXPECT_THAT(source, Not(HasSubstr("tool_call>")));
  chat.tool_choice.reset();
  chat.tools[1].strict = true;
  EXPECT_THAT(SourceOf(chat, form),
              HasSubstr(R"("type":"token_triggered_tags","trigger_tokens":[41])"));
}

TEST(ToolFormat, ListsAndBareCallsHaveTheirOwnForm) {
  AnswerForm list;
  list.calls = CallSyntax::kMistral;
  list.begin = "[TOOL_CALLS][{\"name\": \"";
  list.middle = "\", \"arguments\": ";
  list.end = "}]";
  Chat chat = TwoTools();
  chat.tool_choice = ToolChoice::kRequired;
  EXPECT_THAT(SourceOf(chat, list), HasSubstr(R"("type":"tags_with_separator","separator":", ")"));
  AnswerForm bare;
  bare.calls = CallSyntax::kBare;
  bare.begin = "{\"name\": \"";
  bare.middle = "\", \"parameters\": ";
  bare.end = "}";
  EXPECT_THAT(SourceOf(chat, bare), Not(HasSubstr("plus"))) << "such a model calls one at a time";
  chat.tool_choice.reset();
  chat.tools[0].strict = true;
  EXPECT_THAT(SourceOf(chat, bare), HasSubstr(R"("type":"regex")"));
}

}  // namespace
}  // namespace eta
