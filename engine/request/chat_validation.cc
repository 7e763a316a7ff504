// lint: untrusted-input, fuzz-covered
#include "engine/request/chat_validation.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/json/json_check.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "engine/chat/chat_template.h"
#include "engine/request/answers/tool_validation.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool"};
// What a template has from the server; a caller may not put something else in its place.
constexpr const char* kOwnVariables[] = {"messages", "add_generation_prompt", "bos_token",
                                         "eos_token"};

absl::Status CheckName(const std::optional<std::string>& name, const std::string& field) {
  if (!name) return absl::OkStatus();
  if (name->size() > kMaxChatNameBytes) {
    return InvalidField(field, absl::StrCat("at most ", kMaxChatNameBytes, " bytes"));
  }
  return CheckUtf8Field(field, *name);
}

absl::Status CheckReasoning(const ChatMessage& message, const std::string& field) {
  if (!message.reasoning) return absl::OkStatus();
  if (message.role != "assistant") return InvalidField(field, "is the assistant's");
  if (message.token_ids) return InvalidField(field, "token_ids hold the reasoning already");
  return CheckUtf8Field(field, *message.reasoning);
}

absl::Status CheckMessage(const ChatMessage& message, const std::string& field) {
  if (std::find(std::begin(kRoles), std::end(kRoles), message.role) == std::end(kRoles)) {
    return InvalidField(field + ".role", "must be system, user, assistant or tool");
  }
  if (message.token_ids) {
    if (message.role != "assistant") {
      return InvalidField(field + ".token_ids", "is for answers of the assistant");
    }
    if (message.token_ids->empty()) {
      return InvalidField(field + ".token_ids.ids", "must not be empty");
    }
    if (!message.tool_calls.empty()) {
      return InvalidField(field + ".tool_calls", "token_ids hold the calls already");
    }
  }
  RETURN_IF_ERROR(CheckUtf8Field(field + ".text", message.content));
  RETURN_IF_ERROR(CheckReasoning(message, field + ".reasoning"));
  RETURN_IF_ERROR(CheckToolCalls(message, field));
  RETURN_IF_ERROR(CheckName(message.name, field + ".name"));
  return CheckName(message.tool_call_id, field + ".tool_call_id");
}

absl::Status CheckVariables(const Chat& chat) {
  const std::string& text = chat.variables_json;
  if (text.empty()) return absl::OkStatus();
  const std::string field = "chat.variables";
  const absl::Status sound = CheckJson("must be one JSON object, but", text,
                                       {.max_bytes = ChatTemplateLimits::kVariablesBytes,
                                        .max_depth = ChatTemplateLimits::kVariablesDepth});
  if (!sound.ok()) return InvalidField(field, std::string(sound.message()));
  const JsonTree variables(nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false));
  for (const char* name : kOwnVariables) {
    if (variables.root().contains(name)) {
      return InvalidField(absl::StrCat(field, ".", name), "is a name of the server's own");
    }
  }
  if (!chat.tools.empty() && variables.root().contains("tools")) {
    return InvalidField(field + ".tools", "chat.tools are the variable of this name");
  }
  return absl::OkStatus();
}

int64_t BytesOf(const ChatMessage& message) {
  const auto bytes = [](const std::string& text) { return static_cast<int64_t>(text.size()); };
  int64_t calls = 0;
  for (const ToolCall& call : message.tool_calls) {
    calls += bytes(call.id) + bytes(call.name) + bytes(call.arguments_json);
  }
  return calls + bytes(message.content) + bytes(message.name.value_or("")) +
         bytes(message.tool_call_id.value_or("")) + bytes(message.reasoning.value_or(""));
}

int64_t MessageBytes(const Chat& chat) {
  int64_t bytes = 0;
  for (const ChatMessage& message : chat.messages) bytes += BytesOf(message);
  for (const Tool& tool : chat.tools) {
    bytes += static_cast<int64_t>(tool.name.size() + tool.description.value_or("").size() +
                                  tool.parameters_json.size());
  }
  return bytes;
}

}  // namespace

absl::Status CheckUtf8Field(const std::string& field, std::string_view text) {
  const auto invalid = FirstInvalidUtf8(text);
  if (!invalid) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("is not UTF-8 from byte ", *invalid, " on"));
}

absl::Status CheckMessageCount(size_t count) {
  if (count <= kMaxChatMessages) return absl::OkStatus();
  return InvalidField("chat.messages", absl::StrCat("at most ", kMaxChatMessages, " messages"));
}

absl::Status ValidateChat(const Chat& chat, const Limits& limits) {
  const std::string field = "chat.messages";
  if (chat.messages.empty()) return InvalidField(field, "must not be empty");
  RETURN_IF_ERROR(CheckMessageCount(chat.messages.size()));
  if (MessageBytes(chat) > limits.max_prompt_bytes) {
    return InvalidField(field,
                        absl::StrCat("at most ", limits.max_prompt_bytes, " bytes together"));
  }
  if (TokensIn(chat) > limits.max_context) {
    return InvalidField(field, absl::StrCat("at most ", limits.max_context, " token ids together"));
  }
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    RETURN_IF_ERROR(CheckMessage(chat.messages[i], absl::StrCat(field, "[", i, "]")));
  }
  RETURN_IF_ERROR(CheckTools(chat));
  return CheckVariables(chat);
}

int64_t ChatBytes(const Chat& chat) {
  return MessageBytes(chat) + static_cast<int64_t>(chat.variables_json.size());
}

int64_t TokensIn(const Chat& chat) {
  int64_t tokens = 0;
  for (const ChatMessage& message : chat.messages) {
    if (message.token_ids) tokens += static_cast<int64_t>(message.token_ids->size());
  }
  return tokens;
}

}  // namespace eta
