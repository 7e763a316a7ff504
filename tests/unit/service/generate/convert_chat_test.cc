#include "service/generate/convert_chat.h"

#include <functional>
#include <string>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/generate/convert.h"

namespace eta {
namespace {

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

TEST(ToChat, IsAPrompt) {
  v1::GenerateRequest message;
  *message.mutable_chat() = Good();
  EXPECT_THAT(std::get<Chat>(ToRequest(message).value().prompt).messages, SizeIs(2));
  message.mutable_chat()->mutable_messages(0)->clear_role();
  EXPECT_EQ(GetErrorDetail(ToRequest(message).status()).field, "chat.messages[0].role");
}

}  // namespace
}  // namespace eta
