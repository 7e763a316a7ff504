// lint: untrusted-input, fuzz-covered
#include "service/generate/convert_chat.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/request/answers/tool_validation.h"
#include "engine/request/chat_validation.h"

namespace eta {
namespace {

constexpr int kMaxParts = 4096;
constexpr int kMaxCallsTogether = 4096;

absl::Status Convert(v1::ChatRole in, const std::string& field, std::string& out) {
  switch (in) {
    case v1::CHAT_ROLE_SYSTEM:
      out = "system";
      return absl::OkStatus();
    case v1::CHAT_ROLE_USER:
      out = "user";
      return absl::OkStatus();
    case v1::CHAT_ROLE_ASSISTANT:
      out = "assistant";
      return absl::OkStatus();
    case v1::CHAT_ROLE_TOOL:
      out = "tool";
      return absl::OkStatus();
    case v1::CHAT_ROLE_UNSPECIFIED:
      return InvalidField(field, "must be set: system, user, assistant or tool");
    default:
      return UnknownChoice(field);
  }
}

// Each part is text by itself: a character that is cut between two parts is in neither.
absl::Status Convert(const v1::ContentParts& in, const std::string& field, std::string& out) {
  if (in.items().empty()) return InvalidField(field + ".items", "must not be empty");
  for (int i = 0; i < in.items_size(); ++i) {
    const v1::ContentPart& part = in.items(i);
    const std::string item = absl::StrCat(field, ".items[", i, "]");
    if (!part.has_text()) {
      return InvalidField(item, "must be text: this server knows no other kind of part");
    }
    RETURN_IF_ERROR(CheckUtf8Field(item + ".text", part.text()));
    out += part.text();
  }
  return absl::OkStatus();
}

absl::Status Convert(const v1::ChatMessage& in, const std::string& field, ChatMessage& out) {
  RETURN_IF_ERROR(Convert(in.role(), field + ".role", out.role));
  switch (in.content_case()) {
    case v1::ChatMessage::kText:
      out.content = in.text();
      break;
    case v1::ChatMessage::kParts:
      RETURN_IF_ERROR(Convert(in.parts(), field + ".parts", out.content));
      break;
    case v1::ChatMessage::kTokenIds:
      out.token_ids.emplace(in.token_ids().ids().begin(), in.token_ids().ids().end());
      break;
    case v1::ChatMessage::CONTENT_NOT_SET:
      if (in.tool_calls_size() > 0) break;
      return InvalidField(field, "one of text, parts, token_ids and tool_calls must be set");
  }
  if (in.has_name()) out.name = in.name();
  if (in.has_tool_call_id()) out.tool_call_id = in.tool_call_id();
  if (in.has_reasoning()) out.reasoning = in.reasoning();
  RETURN_IF_ERROR(CheckToolCallCount(field, static_cast<size_t>(in.tool_calls_size())));
  out.tool_calls.reserve(static_cast<size_t>(in.tool_calls_size()));
  for (const v1::ToolCall& call : in.tool_calls()) {
    out.tool_calls.push_back(
        {.id = call.id(), .name = call.name(), .arguments_json = call.arguments()});
  }
  return absl::OkStatus();
}

absl::Status ReadToolChoice(const v1::ToolChoice& in, Chat& out) {
  const std::string field = "chat.tool_choice";
  switch (in.choice_case()) {
    case v1::ToolChoice::kName:
      out.tool_to_call = in.name();
      return absl::OkStatus();
    case v1::ToolChoice::kMode:
      break;
    case v1::ToolChoice::CHOICE_NOT_SET:
      return InvalidField(field, "one of mode and name must be set");
  }
  switch (in.mode()) {
    case v1::TOOL_CHOICE_MODE_AUTO:
      out.tool_choice = ToolChoice::kAuto;
      return absl::OkStatus();
    case v1::TOOL_CHOICE_MODE_NONE:
      out.tool_choice = ToolChoice::kNone;
      return absl::OkStatus();
    case v1::TOOL_CHOICE_MODE_REQUIRED:
      out.tool_choice = ToolChoice::kRequired;
      return absl::OkStatus();
    case v1::TOOL_CHOICE_MODE_UNSPECIFIED:
      return InvalidField(field + ".mode", "must be auto, none or required");
    default:
      return UnknownChoice(field + ".mode");
  }
}

Tool ToolOf(const v1::Tool& in) {
  Tool tool;
  tool.name = in.name();
  if (in.has_description()) tool.description = in.description();
  tool.parameters_json = in.parameters();
  tool.strict = in.strict();
  return tool;
}

}  // namespace

absl::StatusOr<Chat> ToChat(const v1::Chat& message) {
  const std::string field = "chat.messages";
  // Before anything is made of them: an empty message takes two bytes on the wire.
  RETURN_IF_ERROR(CheckMessageCount(static_cast<size_t>(message.messages_size())));
  RETURN_IF_ERROR(CheckToolCount(static_cast<size_t>(message.tools_size())));
  int parts = 0;
  int calls = 0;
  for (const v1::ChatMessage& in : message.messages()) {
    parts += in.parts().items_size();
    calls += in.tool_calls_size();
    if (calls > kMaxCallsTogether) {
      return InvalidField(field,
                          absl::StrCat("at most ", kMaxCallsTogether, " tool_calls together"));
    }
    if (parts > kMaxParts) {
      return InvalidField(field, absl::StrCat("at most ", kMaxParts, " parts together"));
    }
  }
  Chat chat;
  chat.messages.resize(static_cast<size_t>(message.messages_size()));
  for (int i = 0; i < message.messages_size(); ++i) {
    RETURN_IF_ERROR(Convert(message.messages(i), absl::StrCat(field, "[", i, "]"),
                            chat.messages[static_cast<size_t>(i)]));
  }
  if (message.has_add_generation_prompt()) {
    chat.add_generation_prompt = message.add_generation_prompt();
  }
  chat.variables_json = message.variables();
  chat.tools.reserve(static_cast<size_t>(message.tools_size()));
  for (const v1::Tool& tool : message.tools()) chat.tools.push_back(ToolOf(tool));
  if (message.has_tool_choice()) RETURN_IF_ERROR(ReadToolChoice(message.tool_choice(), chat));
  return chat;
}

}  // namespace eta
