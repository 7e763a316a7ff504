// lint: untrusted-input, fuzz-covered
#include "engine/chat/chat_values.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "engine/chat/chat_template.h"
#include "engine/chat/jinja/json_variables.h"

namespace eta {
namespace {

using jinja::Value;

// Templates make control tokens of these ("<|" + role + "|>"), so they count as the template's.
// They are the protocol's words, none of a user's.
bool IsRoleOfProtocol(std::string_view role) {
  static constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
  return std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end();
}

// A dict whose entries come one after the other; the first error stands.
class DictMaker {
 public:
  DictMaker(jinja::Heap& heap, std::string field) : heap_(heap), field_(std::move(field)) {}

  void Put(const char* key, Value value) {
    entries_.emplace_back(jinja::MakeText(heap_, key), std::move(value));
  }
  void PutText(const char* key, const std::string& text) {
    Check(key, text);
    Put(key, jinja::MakeText(heap_, text));
  }
  void PutObject(const char* key, const std::string& json) {
    if (!status_.ok()) return;
    auto object = jinja::ParseObject(heap_, field_ + key, json, ChatTemplateLimits::kOutputBytes,
                                     ChatTemplateLimits::kToolDepth);
    if (!object.ok()) {
      status_ = object.status();
      return;
    }
    Put(key, *std::move(object));
  }
  void Check(const char* key, const std::string& text) {
    const auto invalid = FirstInvalidUtf8(text);
    if (!invalid || !status_.ok()) return;
    status_ = absl::InvalidArgumentError(field_ + key + " is not UTF-8 at byte " +
                                         std::to_string(*invalid));
  }
  absl::StatusOr<Value> Finish() {
    if (!status_.ok()) return status_;
    Value dict = jinja::MakeDict(heap_, std::move(entries_));
    RETURN_IF_ERROR(heap_.status());
    return dict;
  }

 private:
  jinja::Heap& heap_;
  const std::string field_;  // what errors put before a key
  std::vector<std::pair<Value, Value>> entries_;
  absl::Status status_;
};

// {"type": "function", "function": ...}, and the id before it where there is one.
absl::StatusOr<Value> FunctionValue(jinja::Heap& heap, const std::string& field,
                                    const std::string& id, Value function) {
  DictMaker whole(heap, field);
  if (!id.empty()) whole.PutText("id", id);
  whole.PutText("type", "function");
  whole.Put("function", std::move(function));
  return whole.Finish();
}

absl::StatusOr<Value> CallValues(jinja::Heap& heap, const std::string& field,
                                 const std::vector<ToolCall>& calls) {
  std::vector<Value> list;
  list.reserve(calls.size());
  for (size_t at = 0; at < calls.size(); ++at) {
    const std::string name = field + "tool_calls[" + std::to_string(at) + "].";
    DictMaker function(heap, name);
    function.PutText("name", calls[at].name);
    function.PutObject("arguments", calls[at].arguments_json);
    ASSIGN_OR_RETURN(auto made, function.Finish());
    ASSIGN_OR_RETURN(made, FunctionValue(heap, name, calls[at].id, std::move(made)));
    list.push_back(std::move(made));
  }
  return jinja::MakeList(heap, std::move(list));
}

}  // namespace

std::string PlaceOfTokens(size_t index) {
  // Between two characters for private use, so that no template trims or takes it apart.
  return "\uF8FEturn" + std::to_string(index) + "\uF8FF";
}

absl::StatusOr<Value> MessageValues(jinja::Heap& heap, const std::vector<ChatMessage>& messages) {
  std::vector<Value> list;
  list.reserve(messages.size());
  for (size_t at = 0; at < messages.size(); ++at) {
    const ChatMessage& message = messages[at];
    const std::string field = "messages[" + std::to_string(at) + "].";
    DictMaker made(heap, field);
    made.Check("role", message.role);
    made.Put("role", IsRoleOfProtocol(message.role) ? jinja::MakeOwnText(heap, message.role)
                                                    : jinja::MakeText(heap, message.role));
    if (message.token_ids) {
      made.Put("content", jinja::MakeOwnText(heap, PlaceOfTokens(at)));
    } else {
      made.PutText("content", message.content);
    }
    if (message.reasoning) {
      made.PutText("reasoning_content", *message.reasoning);
      made.PutText("thinking", *message.reasoning);  // of gpt-oss
    }
    if (message.name) made.PutText("name", *message.name);
    if (message.tool_call_id) made.PutText("tool_call_id", *message.tool_call_id);
    if (!message.tool_calls.empty()) {
      ASSIGN_OR_RETURN(auto calls, CallValues(heap, field, message.tool_calls));
      made.Put("tool_calls", std::move(calls));
    }
    ASSIGN_OR_RETURN(auto value, made.Finish());
    list.push_back(std::move(value));
  }
  return jinja::MakeList(heap, std::move(list));
}

absl::StatusOr<Value> ToolValues(jinja::Heap& heap, const std::vector<Tool>& tools) {
  if (tools.empty()) return Value::None();
  std::vector<Value> list;
  list.reserve(tools.size());
  for (size_t at = 0; at < tools.size(); ++at) {
    const Tool& tool = tools[at];
    const std::string field = "tools[" + std::to_string(at) + "].";
    DictMaker function(heap, field);
    function.PutText("name", tool.name);
    if (tool.description) function.PutText("description", *tool.description);
    function.PutObject("parameters",
                       tool.parameters_json.empty() ? kNoParameters : tool.parameters_json);
    ASSIGN_OR_RETURN(auto made, function.Finish());
    ASSIGN_OR_RETURN(made, FunctionValue(heap, field, "", std::move(made)));
    list.push_back(std::move(made));
  }
  return jinja::MakeList(heap, std::move(list));
}

}  // namespace eta
