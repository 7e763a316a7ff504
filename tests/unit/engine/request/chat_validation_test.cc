#include "engine/request/chat_validation.h"

#include <functional>
#include <string>

#include "engine/base/error.h"
#include "engine/request/request_validation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using ::testing::HasSubstr;

Chat GoodChat() {
  Chat chat;
  chat.messages = {{.role = "system", .content = "Be brief."},
                   {.role = "user", .content = "Hello"},
                   {.role = "assistant", .content = ""},
                   {.role = "tool", .content = "{}", .name = "clock", .tool_call_id = "call-1"}};
  return chat;
}

// The field that a refusal names; "ok" if there is none.
std::string ChatField(const std::function<void(Chat&)>& change) {
  Chat chat = GoodChat();
  change(chat);
  const absl::Status status = ValidateChat(chat, {.max_prompt_bytes = 1000});
  if (status.ok()) return "ok";
  EXPECT_EQ(GetErrorDetail(status).reason, "INVALID_FIELD");
  return GetErrorDetail(status).field;
}

TEST(ChatValidation, TakesWhatIsWithinItsLimits) {
  EXPECT_EQ(ChatField([](Chat&) {}), "ok");
  EXPECT_EQ(ChatField([](Chat& c) { c.variables_json = R"({"tools": [], "thinking": false})"; }),
            "ok");
  EXPECT_EQ(ChatField([](Chat& c) { c.messages[3].name = std::string(256, 'n'); }), "ok");
  EXPECT_EQ(ChatField([](Chat& c) { c.messages[1].content = std::string("a\0b\x01</s>", 8); }),
            "ok");
}

TEST(ChatValidation, HasOneToSoManyMessages) {
  EXPECT_EQ(ChatField([](Chat& c) { c.messages.clear(); }), "chat.messages");
  const ChatMessage shortest{.role = "user", .content = ""};
  EXPECT_EQ(ChatField([&](Chat& c) { c.messages.assign(1024, shortest); }), "ok");
  EXPECT_EQ(ChatField([&](Chat& c) { c.messages.assign(1025, shortest); }), "chat.messages");
}

// bad input: Chats | messages of over 768 KiB together | INVALID_ARGUMENT, field `chat.messages` |
//   BadChatTest.MessagesOfTooManyBytes
TEST(ChatValidation, CountsTheBytesOfAllMessagesTogether) {
  const auto fill = [](size_t bytes) {
    return [bytes](Chat& c) {
      c.messages = {{.role = "user", .content = std::string(bytes - 20, 'x')},
                    {.role = "tool",
                     .content = std::string(10, 'x'),
                     .name = std::string(5, 'x'),
                     .tool_call_id = std::string(5, 'x')}};
    };
  };
  EXPECT_EQ(ChatField(fill(1000)), "ok");
  EXPECT_EQ(ChatField(fill(1001)), "chat.messages");
}

TEST(ChatValidation, NamesTheMessageThatIsWrong) {
  EXPECT_EQ(ChatField([](Chat& c) { c.messages[2].role = "developer"; }), "chat.messages[2].role");
  EXPECT_EQ(ChatField([](Chat& c) { c.messages[2].role = ""; }), "chat.messages[2].role");
  EXPECT_EQ(ChatField([](Chat& c) { c.messages[1].content = "\xed\xa0\x80"; }),
            "chat.messages[1].text");
  EXPECT_EQ(ChatField([](Chat& c) { c.messages[3].name = std::string(257, 'n'); }),
            "chat.messages[3].name");
  EXPECT_EQ(ChatField([](Chat& c) { c.messages[3].name = "\xff"; }), "chat.messages[3].name");
  EXPECT_EQ(ChatField([](Chat& c) { c.messages[3].tool_call_id = std::string(257, 'n'); }),
            "chat.messages[3].tool_call_id");
}

// bad input: Chats | `name`, `tool_call_id` over 256 bytes; `variables` over 64 KiB, no JSON
//   object, a key twice, 17 deep, a reserved name | INVALID_ARGUMENT, the field named |
//   BadChatTest.FieldsOfChatsAreNamed
TEST(ChatValidation, VariablesAreOneJsonObjectWithNamesOfTheirOwn) {
  const std::string deep = std::string(17, '[') + std::string(17, ']');
  for (const std::string& bad :
       {std::string("[1]"), std::string("{"), std::string("{} {}"), std::string("\xff"),
        std::string(R"({"a": 1, "\u0061": 2})"), R"({"a": )" + deep + "}",
        R"({"a": ")" + std::string(64 << 10, 'x') + "\"}", std::string("{}\0", 3)}) {
    EXPECT_EQ(ChatField([&](Chat& c) { c.variables_json = bad; }), "chat.variables")
        << bad.substr(0, 40);
  }
  for (const char* own : {"messages", "add_generation_prompt", "bos_token", "eos_token"}) {
    EXPECT_EQ(ChatField([&](Chat& c) { c.variables_json = "{\"" + std::string(own) + "\": 1}"; }),
              "chat.variables." + std::string(own));
  }
}

TEST(ChatValidation, IsPartOfARequests) {
  Request request;
  request.id = "r1";
  request.prompt = GoodChat();
  EngineInfo model;
  model.config.vocab_size = 100;
  EXPECT_TRUE(ValidateRequest(request, model, Limits()).ok());
  request.parse_special = true;
  EXPECT_EQ(GetErrorDetail(ValidateRequest(request, model, Limits())).field, "parse_special");
  request.parse_special = false;
  model.chat_refusal = "this model has no chat template";
  const absl::Status refused = ValidateRequest(request, model, Limits());
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_EQ(GetErrorDetail(refused).reason, "CHAT_UNSUPPORTED");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no chat template"));
  std::get<Chat>(request.prompt).messages.clear();
  EXPECT_EQ(GetErrorDetail(ValidateRequest(request, model, Limits())).field, "chat.messages");
}

}  // namespace
}  // namespace eta
