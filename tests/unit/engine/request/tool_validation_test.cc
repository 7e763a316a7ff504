#include "engine/request/answers/tool_validation.h"

#include <functional>
#include <string>

#include "engine/base/error.h"
#include "engine/request/chat_validation.h"
#include "engine/request/request_validation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using ::testing::HasSubstr;

Chat ToolChat() {
  Chat chat;
  chat.messages.push_back({.role = "user", .content = "Weather?"});
  ChatMessage& call = chat.messages.emplace_back();
  call.role = "assistant";
  call.tool_calls = {{.id = "a", .name = "weather", .arguments_json = "{}"},
                     {.id = "", .name = "gone", .arguments_json = R"({"a": [1]})"},
                     {.id = "", .name = "gone", .arguments_json = "{}"}};
  ChatMessage& tokens = chat.messages.emplace_back();
  tokens.role = "assistant";
  tokens.token_ids = {1, 2};
  chat.tools = {{.name = "weather", .parameters_json = R"({"type": "object"})"},
                {.name = "get.time-now_2", .description = "d", .strict = true}};
  chat.tool_to_call = "weather";
  return chat;
}

// The field that a refusal names; "ok" if there is none.
std::string ToolField(const std::function<void(Chat&)>& change, Limits limits = {}) {
  Chat chat = ToolChat();
  change(chat);
  const absl::Status status = ValidateChat(chat, limits);
  return status.ok() ? "ok" : GetErrorDetail(status).field;
}

// bad input: Chats | more than 128 tools, or calls of a message; a tool without a good name, two of
//   one name; `parameters` that are no schema of an object, over 64 KiB, 33 deep |
//   INVALID_ARGUMENT, the field named | BadChatTest.FieldsOfToolsAreNamed
TEST(ToolValidation, ToolsHaveNamesAndSchemas) {
  EXPECT_EQ(ToolField([](Chat&) {}), "ok");
  EXPECT_EQ(ToolField([](Chat& c) {
              c.tools.resize(128, {.name = "x"});
              for (size_t i = 0; i < 128; ++i) c.tools[i].name = i ? std::to_string(i) : "weather";
            }),
            "ok");
  EXPECT_EQ(ToolField([](Chat& c) { c.tools.resize(129, {.name = "x"}); }), "chat.tools");
  for (const std::string& name : {std::string(), std::string(65, 'x'), std::string("a b"),
                                  std::string("\xc3\xa9"), std::string("a\"")}) {
    EXPECT_EQ(ToolField([&](Chat& c) { c.tools[1].name = name; }), "chat.tools[1].name");
  }
  EXPECT_EQ(ToolField([](Chat& c) { c.tools[1].name = "weather"; }), "chat.tools[1].name");
  EXPECT_EQ(ToolField([](Chat& c) { c.tools[0].description = "\xff"; }),
            "chat.tools[0].description");
  const std::string deep = std::string(32, '[') + std::string(32, ']');
  for (const std::string& bad :
       {std::string("[]"), std::string("{"), std::string("{}"),
        std::string(R"({"type": "string"})"),
        std::string(R"({"type": "object", "type": "object"})"), std::string("\xff"),
        R"({"type": "object", "a": )" + deep + "}",
        R"({"type": "object", "a": ")" + std::string(64 << 10, 'x') + "\"}"}) {
    EXPECT_EQ(ToolField([&](Chat& c) { c.tools[0].parameters_json = bad; }),
              "chat.tools[0].parameters")
        << bad.substr(0, 40);
  }
}

// bad input: Chats | a `tool_choice` without tools, of a tool that is not there, or of no mode |
//   INVALID_ARGUMENT, field `chat.tool_choice` or below | BadChatTest.FieldsOfToolsAreNamed
TEST(ToolValidation, TheChoiceIsAmongTheTools) {
  EXPECT_EQ(ToolField([](Chat& c) { c.tool_to_call = "gone"; }), "chat.tool_choice.name");
  EXPECT_EQ(ToolField([](Chat& c) { c.tools.clear(); }), "chat.tool_choice");
  const auto without = [](Chat& c) {
    c.tools.clear();
    c.tool_to_call.reset();
  };
  EXPECT_EQ(ToolField(without), "ok");
  EXPECT_EQ(ToolField([&](Chat& c) {
              without(c);
              c.tool_choice = ToolChoice::kNone;
            }),
            "chat.tool_choice");
}

// bad input: Chats | tools beside a variable `tools` | INVALID_ARGUMENT, field
//   `chat.variables.tools` | BadChatTest.FieldsOfToolsAreNamed
TEST(ToolValidation, ToolsAreGivenOnce) {
  const auto also = [](Chat& c) { c.variables_json = R"({"tools": []})"; };
  EXPECT_EQ(ToolField(also), "chat.variables.tools");
}

// bad input: Chats | calls of another role than assistant, with a bad name, `arguments` that are no
//   JSON object, an id over 256 bytes or twice | INVALID_ARGUMENT, the field named |
//   BadChatTest.FieldsOfToolsAreNamed
TEST(ToolValidation, CallsAreTheAssistants) {
  const std::string calls = "chat.messages[1].tool_calls";
  EXPECT_EQ(ToolField([](Chat& c) { c.messages[1].role = "user"; }), calls);
  EXPECT_EQ(
      ToolField([](Chat& c) { c.messages[1].tool_calls.resize(129, c.messages[1].tool_calls[1]); }),
      calls);
  EXPECT_EQ(ToolField([](Chat& c) { c.messages[1].tool_calls[2].name = ""; }), calls + "[2].name");
  EXPECT_EQ(ToolField([](Chat& c) { c.messages[1].tool_calls[1].id = "a"; }), calls + "[1].id");
  EXPECT_EQ(ToolField([](Chat& c) { c.messages[1].tool_calls[1].id = std::string(257, 'i'); }),
            calls + "[1].id");
  for (const char* bad : {"", "1", "{", R"({"a": 1, "a": 2})", "{} {}"}) {
    EXPECT_EQ(ToolField([&](Chat& c) { c.messages[1].tool_calls[0].arguments_json = bad; }),
              calls + "[0].arguments")
        << bad;
  }
}

// bad input: Chats | `token_ids` of another role than assistant, beside calls, none, more than the
//   context holds, outside of the vocabulary | INVALID_ARGUMENT, the field named |
//   BadChatTest.FieldsOfToolsAreNamed
TEST(ToolValidation, TokenIdsAreTheAssistants) {
  const std::string field = "chat.messages[2]";
  EXPECT_EQ(ToolField([](Chat& c) { c.messages[2].role = "user"; }), field + ".token_ids");
  EXPECT_EQ(ToolField([](Chat& c) { c.messages[2].token_ids->clear(); }), field + ".token_ids.ids");
  EXPECT_EQ(ToolField([](Chat& c) { c.messages[2].tool_calls = c.messages[1].tool_calls; }),
            field + ".tool_calls");
  EXPECT_EQ(ToolField([](Chat&) {}, {.max_context = 1}), "chat.messages");
  Request request;
  request.id = "r";
  request.prompt = ToolChat();
  EngineInfo model;
  model.config.vocab_size = 2;
  EXPECT_EQ(GetErrorDetail(ValidateRequest(request, model, {})).field,
            "chat.messages[2].token_ids.ids[1]");
}

// bad input: Chats | `reasoning` of another role than assistant, beside `token_ids`, not UTF-8 |
//   INVALID_ARGUMENT, field `chat.messages[0].reasoning`
TEST(ToolValidation, ReasoningIsTheAssistants) {
  EXPECT_EQ(ToolField([](Chat& c) { c.messages[1].reasoning = "so"; }), "ok");
  const std::string field = "chat.messages[0].reasoning";
  EXPECT_EQ(ToolField([](Chat& c) { c.messages[0].reasoning = "so"; }), field);
  EXPECT_EQ(ToolField([](Chat& c) { c.messages[2].reasoning = "so"; }),
            "chat.messages[2].reasoning");
  EXPECT_EQ(ToolField([](Chat& c) { c.messages[1].reasoning = "\xff"; }),
            "chat.messages[1].reasoning");
  EXPECT_EQ(ToolField([](Chat& c) { c.messages[1].reasoning = std::string(1000, 'x'); },
                      {.max_prompt_bytes = 1000}),
            "chat.messages");
}

TEST(ToolValidation, ToolsAndCallsCountAsBytesOfThePrompt) {
  const auto long_call = [](Chat& c) {
    c.messages[1].tool_calls[0].arguments_json = "{\"a\": \"" + std::string(1000, 'x') + "\"}";
  };
  const auto long_tool = [](Chat& c) { c.tools[0].description = std::string(1000, 'x'); };
  EXPECT_EQ(ToolField(long_call, {.max_prompt_bytes = 1000}), "chat.messages");
  EXPECT_EQ(ToolField(long_tool, {.max_prompt_bytes = 1000}), "chat.messages");
}

// bad input: Chats | tools for a model whose template shows none, or whose calls are of a form that
//   is not read | FAILED_PRECONDITION, CHAT_UNSUPPORTED | BadChatTest.ToolsOfATemplateThatShowsNone
TEST(ToolValidation, TheModelsTemplateHasToKnowTools) {
  const auto refusal = [](const Chat& chat, const AnswerForm& form) {
    Request request;
    request.id = "r";
    request.prompt = chat;
    EngineInfo model;
    model.config.vocab_size = 10;
    model.answer_form = form;
    const absl::Status status = ValidateRequest(request, model, {});
    if (!status.ok()) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_EQ(GetErrorDetail(status).reason, "CHAT_UNSUPPORTED");
    }
    return std::string(status.message());
  };
  Chat chat = ToolChat();
  AnswerForm form;
  EXPECT_THAT(refusal(chat, form), HasSubstr("shows no tools"));
  form.shows_tools = true;
  EXPECT_THAT(refusal(chat, form), HasSubstr("not read here"));
  form.calls = CallSyntax::kBare;
  EXPECT_EQ(refusal(chat, form), "");
  form.calls = CallSyntax::kChannel;
  EXPECT_EQ(refusal(chat, form), "") << "one by name";
  Chat strict = chat;
  strict.tool_to_call.reset();
  strict.tools[0].strict = true;
  EXPECT_THAT(refusal(strict, form), HasSubstr("strict tools are not supported"));
  strict.tool_choice = ToolChoice::kRequired;
  EXPECT_EQ(refusal(strict, form), "");
  form.calls = CallSyntax::kNone;
  chat.tool_to_call.reset();
  chat.tool_choice = ToolChoice::kNone;
  EXPECT_EQ(refusal(chat, form), "");
  chat.tools.clear();
  chat.tool_choice.reset();
  EXPECT_EQ(refusal(chat, {}), "");
}

}  // namespace
}  // namespace eta
