#include "engine/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "engine/chat/jinja/compile/compiler.h"
#include "engine/chat/jinja/interpreter.h"
#include "engine/chat/jinja/json_variables.h"
#include "engine/chat/jinja/program.h"
#include "engine/chat/jinja/values/heap.h"
#include "engine/chat/jinja/values/value.h"

namespace eta {
namespace {

using Limits = ChatTemplateLimits;
using jinja::Value;

// Templates make control tokens of these ("<|" + role + "|>"), so they count as the template's.
// They are the protocol's words, none of a user's.
bool IsRoleOfProtocol(std::string_view role) {
  static constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
  return std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end();
}

absl::Status CheckUtf8(const std::string& text, const std::string& field) {
  if (const auto invalid = FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(field + " is not UTF-8 at byte " + std::to_string(*invalid));
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> Messages(jinja::Heap& heap, const std::vector<ChatMessage>& messages) {
  std::vector<Value> list;
  list.reserve(messages.size());
  for (size_t at = 0; at < messages.size(); ++at) {
    const ChatMessage& message = messages[at];
    const std::string field = "messages[" + std::to_string(at) + "].";
    RETURN_IF_ERROR(CheckUtf8(message.role, field + "role"));
    RETURN_IF_ERROR(CheckUtf8(message.content, field + "content"));
    RETURN_IF_ERROR(CheckUtf8(message.name.value_or(""), field + "name"));
    RETURN_IF_ERROR(CheckUtf8(message.tool_call_id.value_or(""), field + "tool_call_id"));
    std::vector<std::pair<Value, Value>> entries;
    const auto put = [&](const char* key, Value value) {
      entries.emplace_back(jinja::MakeText(heap, key), std::move(value));
    };
    put("role", IsRoleOfProtocol(message.role) ? jinja::MakeOwnText(heap, message.role)
                                               : jinja::MakeText(heap, message.role));
    put("content", jinja::MakeText(heap, message.content));
    if (message.name) put("name", jinja::MakeText(heap, *message.name));
    if (message.tool_call_id) put("tool_call_id", jinja::MakeText(heap, *message.tool_call_id));
    list.push_back(jinja::MakeDict(heap, std::move(entries)));
    RETURN_IF_ERROR(heap.status());
  }
  return jinja::MakeList(heap, std::move(list));
}

// Values die before the heap that counts them.
absl::StatusOr<RenderedChat> RenderIn(jinja::Heap& heap, const jinja::Program& program,
                                      const ChatTemplate::Tokens& tokens, const Chat& chat) {
  ASSIGN_OR_RETURN(auto messages, Messages(heap, chat.messages));
  jinja::Variables variables = {
      {"messages", std::move(messages)},
      {"add_generation_prompt", Value::Boolean(chat.add_generation_prompt)},
      {"bos_token", jinja::MakeOwnText(heap, tokens.bos)},
      {"eos_token", jinja::MakeOwnText(heap, tokens.eos)},
  };
  const size_t own = variables.size();
  // As transformers passes them where there are none.
  variables.emplace_back("tools", Value::None());
  variables.emplace_back("documents", Value::None());
  if (!chat.variables_json.empty()) {
    ASSIGN_OR_RETURN(const auto others,
                     jinja::ParseVariables(heap, chat.variables_json, Limits::kVariablesBytes,
                                           Limits::kVariablesDepth));
    for (const auto& [name, value] : others) {
      const auto is_name = [&name = name](const auto& entry) { return entry.first == name; };
      const auto end = variables.begin() + static_cast<std::ptrdiff_t>(own);
      if (std::find_if(variables.begin(), end, is_name) != end) {
        return absl::InvalidArgumentError("template variables: '" + name + "' is the chat's own");
      }
      variables.emplace_back(name, value);
    }
  }
  return jinja::Interpret(program, variables, heap, Limits::kOutputBytes);
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<const jinja::Program> program, Tokens tokens)
    : program_(std::move(program)), tokens_(std::move(tokens)) {}

ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(std::string_view source,
                                                                  Tokens tokens) {
  return CatchOutOfMemory([&]() -> absl::StatusOr<std::unique_ptr<ChatTemplate>> {
    if (source.size() > Limits::kSourceBytes) {
      return absl::InvalidArgumentError("chat template: longer than the limit of " +
                                        std::to_string(Limits::kSourceBytes) + " bytes");
    }
    RETURN_IF_ERROR(CheckUtf8(tokens.bos, "chat template: bos_token"));
    RETURN_IF_ERROR(CheckUtf8(tokens.eos, "chat template: eos_token"));
    ASSIGN_OR_RETURN(auto program, jinja::Compile(source));
    return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(program), std::move(tokens)));
  });
}

std::vector<std::string> ChatTemplate::Literals() const {
  using jinja::Op;
  std::set<std::string> literals;
  const std::vector<jinja::Instruction>& code = program_->code;
  for (size_t at = 0; at < code.size(); ++at) {
    const bool names_item = at + 1 < code.size() && code[at + 1].op == Op::kItem;
    if (code[at].op != Op::kEmitConstant && (code[at].op != Op::kConstant || names_item)) continue;
    const Value& constant = program_->constants[code[at].a];
    if (constant.IsText()) literals.insert(constant.text().bytes);
  }
  return {literals.begin(), literals.end()};
}

absl::StatusOr<RenderedChat> ChatTemplate::Render(const Chat& chat) const {
  return CatchOutOfMemory([&]() -> absl::StatusOr<RenderedChat> {
    jinja::Heap heap({.live_bytes = Limits::kLiveBytes, .steps = Limits::kSteps});
    return RenderIn(heap, *program_, tokens_, chat);
  });
}

}  // namespace eta
