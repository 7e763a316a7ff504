#include "engine/chat/chat_template.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "engine/chat/chat_values.h"
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

absl::Status CheckUtf8(const std::string& text, const std::string& field) {
  if (const auto invalid = FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(field + " is not UTF-8 at byte " + std::to_string(*invalid));
  }
  return absl::OkStatus();
}

// Finds the places of token ids. Callers cannot write one, so what lies in a control range is one.
absl::Status FindTurns(const Chat& chat, RenderedChat& rendered) {
  const std::vector<ByteRange> control = JoinTouching(rendered.control);
  for (size_t at = 0; at < chat.messages.size(); ++at) {
    if (!chat.messages[at].token_ids) continue;
    const std::string place = PlaceOfTokens(at);
    size_t found = 0;
    for (const ByteRange& range : control) {
      const std::string_view own =
          std::string_view(rendered.text).substr(range.begin, range.end - range.begin);
      for (size_t i = own.find(place); i != std::string_view::npos;
           i = own.find(place, i + place.size())) {
        const size_t begin = range.begin + i;
        rendered.turns.push_back({.range = {begin, begin + place.size()}, .message = at});
        ++found;
      }
    }
    if (found != 1) {
      return absl::InvalidArgumentError("the template does not repeat the tokens of messages[" +
                                        std::to_string(at) + "] once, as they stand");
    }
  }
  std::sort(rendered.turns.begin(), rendered.turns.end(),
            [](const auto& a, const auto& b) { return a.range.begin < b.range.begin; });
  return absl::OkStatus();
}

// Values die before the heap that counts them.
absl::StatusOr<RenderedChat> RenderIn(jinja::Heap& heap, const jinja::Program& program,
                                      const ChatTemplate::Tokens& tokens, const Chat& chat) {
  ASSIGN_OR_RETURN(auto messages, MessageValues(heap, chat.messages));
  ASSIGN_OR_RETURN(auto tools, ToolValues(heap, chat.tools));
  jinja::Variables variables = {
      {"messages", std::move(messages)},
      {"add_generation_prompt", Value::Boolean(chat.add_generation_prompt)},
      {"bos_token", jinja::MakeOwnText(heap, tokens.bos)},
      {"eos_token", jinja::MakeOwnText(heap, tokens.eos)},
  };
  size_t own = variables.size();
  // As transformers passes them where there are none.
  variables.emplace_back("tools", std::move(tools));
  if (!chat.tools.empty()) own = variables.size();
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
  ASSIGN_OR_RETURN(auto rendered, jinja::Interpret(program, variables, heap, Limits::kOutputBytes));
  RETURN_IF_ERROR(FindTurns(chat, rendered));
  return rendered;
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
