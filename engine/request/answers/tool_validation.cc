// lint: untrusted-input, fuzz-covered
#include "engine/request/answers/tool_validation.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/json/json_check.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/status_macros.h"
#include "engine/chat/chat_template.h"
#include "engine/request/answers/tool_format.h"
#include "engine/request/chat_validation.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

absl::Status CheckToolName(const std::string& name, const std::string& field) {
  const bool is_name = !name.empty() && name.size() <= kMaxToolNameBytes &&
                       std::all_of(name.begin(), name.end(), IsToolNameByte);
  if (is_name) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("must be 1 to ", kMaxToolNameBytes,
                                          " of A-Z, a-z, 0-9, '_', '-' and '.'"));
}

absl::Status CheckObject(const std::string& json, size_t max_bytes, const std::string& field) {
  const absl::Status sound =
      CheckJson("must be one JSON object, but", json,
                {.max_bytes = max_bytes, .max_depth = ChatTemplateLimits::kToolDepth});
  return sound.ok() ? sound : InvalidField(field, std::string(sound.message()));
}

absl::Status CheckParameters(const std::string& json, const std::string& field) {
  if (json.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckObject(json, kMaxParametersBytes, field));
  const JsonTree schema(nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false));
  const auto type = schema.root().find("type");
  if (type != schema.root().end() && *type == "object") return absl::OkStatus();
  return InvalidField(field, R"(must be the schema of an object: "type": "object")");
}

absl::Status CheckChoice(const Chat& chat) {
  if (!chat.tool_choice && !chat.tool_to_call) return absl::OkStatus();
  if (chat.tools.empty()) return InvalidField("chat.tool_choice", "needs tools");
  if (!chat.tool_to_call) return absl::OkStatus();
  const bool known = std::any_of(chat.tools.begin(), chat.tools.end(),
                                 [&](const Tool& tool) { return tool.name == *chat.tool_to_call; });
  return known ? absl::OkStatus()
               : InvalidField("chat.tool_choice.name", "must be the name of one of chat.tools");
}

absl::Status Unsupported(const std::string& why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, absl::StrCat("chat.tools: ", why),
                   {.reason = "CHAT_UNSUPPORTED", .field = "chat.tools"});
}

}  // namespace

absl::Status CheckToolCount(size_t count) {
  if (count <= kMaxTools) return absl::OkStatus();
  return InvalidField("chat.tools", absl::StrCat("at most ", kMaxTools, " tools"));
}

absl::Status CheckToolCallCount(const std::string& field, size_t count) {
  if (count <= kMaxToolCalls) return absl::OkStatus();
  return InvalidField(field + ".tool_calls", absl::StrCat("at most ", kMaxToolCalls, " calls"));
}

absl::Status CheckTools(const Chat& chat) {
  RETURN_IF_ERROR(CheckToolCount(chat.tools.size()));
  std::set<std::string_view> names;
  for (size_t i = 0; i < chat.tools.size(); ++i) {
    const Tool& tool = chat.tools[i];
    const std::string field = absl::StrCat("chat.tools[", i, "]");
    RETURN_IF_ERROR(CheckToolName(tool.name, field + ".name"));
    if (!names.insert(tool.name).second) {
      return InvalidField(field + ".name", "is the name of another tool too");
    }
    RETURN_IF_ERROR(CheckUtf8Field(field + ".description", tool.description.value_or("")));
    RETURN_IF_ERROR(CheckParameters(tool.parameters_json, field + ".parameters"));
  }
  return CheckChoice(chat);
}

absl::Status CheckToolCalls(const ChatMessage& message, const std::string& field) {
  if (message.tool_calls.empty()) return absl::OkStatus();
  if (message.role != "assistant") {
    return InvalidField(field + ".tool_calls", "are calls of the assistant");
  }
  RETURN_IF_ERROR(CheckToolCallCount(field, message.tool_calls.size()));
  std::set<std::string_view> ids;
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const ToolCall& call = message.tool_calls[i];
    const std::string name = absl::StrCat(field, ".tool_calls[", i, "]");
    if (call.id.size() > kMaxChatNameBytes) {
      return InvalidField(name + ".id", absl::StrCat("at most ", kMaxChatNameBytes, " bytes"));
    }
    RETURN_IF_ERROR(CheckUtf8Field(name + ".id", call.id));
    if (!call.id.empty() && !ids.insert(call.id).second) {
      return InvalidField(name + ".id", "is the id of another call too");
    }
    RETURN_IF_ERROR(CheckToolName(call.name, name + ".name"));
    RETURN_IF_ERROR(
        CheckObject(call.arguments_json, std::numeric_limits<size_t>::max(), name + ".arguments"));
  }
  return absl::OkStatus();
}

absl::Status CheckToolsOfModel(const Chat& chat, const AnswerForm& form) {
  if (chat.tools.empty()) return absl::OkStatus();
  if (!form.shows_tools) return Unsupported("this model's chat template shows no tools");
  if (form.calls == CallSyntax::kChannel && WantsToolFormat(chat) && !MustCall(chat)) {
    return Unsupported(
        "strict tools are not supported with this model but under tool_choice required or by name: "
        "among other messages no call is bound");
  }
  if (form.calls != CallSyntax::kNone || chat.tool_choice == ToolChoice::kNone) {
    return absl::OkStatus();
  }
  return Unsupported(
      "this model's chat template writes calls in a form that is not read here; it shows tools "
      "with tool_choice none, and the calls stay text");
}

}  // namespace eta
