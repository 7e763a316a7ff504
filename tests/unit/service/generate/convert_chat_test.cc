#include "service/generate/convert_chat.h"

#include <functional>
#include <string>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/generate/convert.h"

namespace eta {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

v1::Chat Good() {
  v1::Chat chat;
  v1::ChatMessage& system = *chat.add_messages();
  system.set_role(v1::CHAT_ROLE_SYSTEM);
  system.set_text("Be brief.");
  v1::ChatMessage& user = *chat.add_messages();
  user.set_role(v1::CHAT_ROLE_USER);
  user.mutable_parts()->add_items()->set_text("Hel");
  user.mutable_parts()->add_items()->set_text("lo");
  user.set_name("ann");
  return chat;
}

std::string Field(const std::function<void(v1::Chat&)>& change) {
  v1::Chat chat = Good();
  change(chat);
  const auto converted = ToChat(chat);
  return converted.ok() ? "ok" : GetErrorDetail(converted.status()).field;
}

TEST(ToChat, CarriesEveryField) {
  v1::Chat message = Good();
  v1::ChatMessage& tool = *message.add_messages();
  tool.set_role(v1::CHAT_ROLE_TOOL);
  tool.set_text("12:00");
  tool.set_tool_call_id("call-1");
  message.add_messages()->set_role(v1::CHAT_ROLE_ASSISTANT);
  message.mutable_messages(3)->set_text("");
  message.mutable_messages(3)->set_reasoning("so");
  message.set_add_generation_prompt(false);
  message.set_variables(R"({"tools": []})");
  const auto chat = ToChat(message).value();
  ASSERT_THAT(chat.messages, SizeIs(4));
  EXPECT_EQ(chat.messages[0].role, "system");
  EXPECT_EQ(chat.messages[0].content, "Be brief.");
  EXPECT_FALSE(chat.messages[0].name.has_value());
  EXPECT_EQ(chat.messages[1].role, "user");
  EXPECT_EQ(chat.messages[1].content, "Hello");
  EXPECT_EQ(chat.messages[1].name, "ann");
  EXPECT_EQ(chat.messages[2].role, "tool");
  EXPECT_EQ(chat.messages[2].tool_call_id, "call-1");
  EXPECT_EQ(chat.messages[3].role, "assistant");
  EXPECT_EQ(chat.messages[3].content, "");
  EXPECT_EQ(chat.messages[3].reasoning, "so");
  EXPECT_FALSE(chat.messages[2].reasoning.has_value());
  EXPECT_FALSE(chat.add_generation_prompt);
  EXPECT_EQ(chat.variables_json, R"({"tools": []})");
}

TEST(ToChat, EndsWhereTheAnswerBeginsUnlessToldOtherwise) {
  const auto chat = ToChat(Good()).value();
  EXPECT_TRUE(chat.add_generation_prompt);
  EXPECT_EQ(chat.variables_json, "");
}

// bad input: Chats | a role that is missing or not known | INVALID_ARGUMENT, field
//   `chat.messages[i].role` | BadChatTest.FieldsOfChatsAreNamed
// bad input: Chats | a message without content or parts; a part of another kind than text |
//   INVALID_ARGUMENT, `chat.messages[i]`, `.parts.items` or `.parts.items[j]` |
//   BadChatTest.FieldsOfChatsAreNamed
TEST(ToChat, NamesWhatItDoesNotKnow) {
  EXPECT_EQ(Field([](v1::Chat& c) { c.mutable_messages(1)->clear_role(); }),
            "chat.messages[1].role");
  EXPECT_EQ(
      Field([](v1::Chat& c) { c.mutable_messages(1)->set_role(static_cast<v1::ChatRole>(77)); }),
      "chat.messages[1].role");
  EXPECT_EQ(Field([](v1::Chat& c) { c.mutable_messages(0)->clear_content(); }), "chat.messages[0]");
  EXPECT_EQ(Field([](v1::Chat& c) { c.mutable_messages(1)->mutable_parts()->clear_items(); }),
            "chat.messages[1].parts.items");
  EXPECT_EQ(Field([](v1::Chat& c) {
              c.mutable_messages(1)->mutable_parts()->mutable_items(1)->clear_text();
            }),
            "chat.messages[1].parts.items[1]");
}

// bad input: Chats | not UTF-8, also a character cut between two parts | INVALID_ARGUMENT,
//   `chat.messages[i].text` or `.parts.items[j].text` | BadChatTest.FieldsOfChatsAreNamed
TEST(ToChat, ACharacterIsNotPutTogetherFromTwoParts) {
  EXPECT_EQ(Field([](v1::Chat& c) {
              v1::ContentParts& parts = *c.mutable_messages(1)->mutable_parts();
              parts.mutable_items(0)->set_text("caf\xc3");
              parts.mutable_items(1)->set_text("\xa9");
            }),
            "chat.messages[1].parts.items[0].text");
}

// bad input: Chats | no messages, over 1024, over 4096 parts | INVALID_ARGUMENT, field
//   `chat.messages`, before anything is made of them | BadChatTest.FieldsOfChatsAreNamed
TEST(ToChat, CountsBeforeItConverts) {
  EXPECT_EQ(Field([](v1::Chat& c) {
              while (c.messages_size() < 1025) *c.add_messages() = c.messages(0);
            }),
            "chat.messages");
  EXPECT_EQ(Field([](v1::Chat& c) {
              v1::ContentParts& parts = *c.mutable_messages(1)->mutable_parts();
              while (parts.items_size() < 4096) parts.add_items()->set_text("");
            }),
            "ok");
  EXPECT_EQ(Field([](v1::Chat& c) {
              v1::ContentParts& parts = *c.mutable_messages(1)->mutable_parts();
              while (parts.items_size() < 4097) parts.add_items()->set_text("");
            }),
            "chat.messages");
}

TEST(ToChat, CarriesToolsCallsAndTokens) {
  v1::Chat message = Good();
  v1::ChatMessage& calling = *message.add_messages();
  calling.set_role(v1::CHAT_ROLE_ASSISTANT);
  v1::ToolCall& call = *calling.add_tool_calls();
  call.set_id("call_1");
  call.set_name("weather");
  call.set_arguments("{}");
  v1::ChatMessage& tokens = *message.add_messages();
  tokens.set_role(v1::CHAT_ROLE_ASSISTANT);
  tokens.mutable_token_ids()->add_ids(7);
  v1::Tool& tool = *message.add_tools();
  tool.set_name("weather");
  tool.set_description("tells it");
  tool.set_parameters(R"({"type":"object"})");
  tool.set_strict(true);
  message.add_tools()->set_name("clock");
  message.mutable_tool_choice()->set_mode(v1::TOOL_CHOICE_MODE_REQUIRED);
  const Chat chat = ToChat(message).value();
  EXPECT_EQ(chat.messages[2].content, "");
  EXPECT_THAT(chat.messages[2].tool_calls,
              ElementsAre(ToolCall{.id = "call_1", .name = "weather", .arguments_json = "{}"}));
  EXPECT_FALSE(chat.messages[2].token_ids.has_value());
  EXPECT_THAT(chat.messages[3].token_ids.value(), ElementsAre(7));
  ASSERT_THAT(chat.tools, SizeIs(2));
  EXPECT_EQ(chat.tools[0].name, "weather");
  EXPECT_EQ(chat.tools[0].description, "tells it");
  EXPECT_EQ(chat.tools[0].parameters_json, R"({"type":"object"})");
  EXPECT_TRUE(chat.tools[0].strict);
  EXPECT_FALSE(chat.tools[1].description.has_value());
  EXPECT_FALSE(chat.tools[1].strict);
  EXPECT_EQ(chat.tool_choice, ToolChoice::kRequired);
  EXPECT_FALSE(chat.tool_to_call.has_value());
  message.mutable_tool_choice()->set_name("clock");
  EXPECT_EQ(ToChat(message)->tool_to_call, "clock");
  EXPECT_FALSE(ToChat(message)->tool_choice.has_value());
}

TEST(ToChat, NamesChoicesThatItDoesNotKnow) {
  EXPECT_EQ(Field([](v1::Chat& c) { c.mutable_tool_choice(); }), "chat.tool_choice");
  for (const int mode : {0, 77}) {
    EXPECT_EQ(Field([&](v1::Chat& c) {
                c.mutable_tool_choice()->set_mode(static_cast<v1::ToolChoiceMode>(mode));
              }),
              "chat.tool_choice.mode");
  }
}

TEST(ToChat, CountsToolsAndCallsBeforeItConverts) {
  EXPECT_EQ(Field([](v1::Chat& c) {
              while (c.tools_size() < 129) c.add_tools();
            }),
            "chat.tools");
  EXPECT_EQ(Field([](v1::Chat& c) {
              while (c.messages(1).tool_calls_size() < 129) c.mutable_messages(1)->add_tool_calls();
            }),
            "chat.messages[1].tool_calls");
  EXPECT_EQ(Field([](v1::Chat& c) {
              while (c.messages(1).tool_calls_size() < 65) c.mutable_messages(1)->add_tool_calls();
              while (c.messages_size() < 66) *c.add_messages() = c.messages(1);
            }),
            "chat.messages");
}

TEST(ToChat, IsAPrompt) {
  v1::GenerateRequest message;
  *message.mutable_chat() = Good();
  EXPECT_THAT(std::get<Chat>(ToRequest(message).value().prompt).messages, SizeIs(2));
  message.mutable_chat()->mutable_messages(0)->clear_role();
  EXPECT_EQ(GetErrorDetail(ToRequest(message).status()).field, "chat.messages[0].role");
}

}  // namespace
}  // namespace eta
