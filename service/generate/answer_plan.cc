// lint: untrusted-input
#include "service/generate/answer_plan.h"

#include <utility>
#include <variant>

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/request/answers/tool_format.h"
#include "engine/request/chat_validation.h"

namespace eta {

absl::StatusOr<std::optional<AnswerReader::Options>> PlanAnswer(
    const v1::OutputOptions& output, const EngineInfo& model, const Limits& limits,
    Request& request, std::optional<AnswerFormat>& format) {
  const auto* chat = std::get_if<Chat>(&request.prompt);
  if (chat == nullptr) {
    if (!output.reasoning()) return std::nullopt;
    return InvalidField("output.reasoning",
                        "is for chats: of other prompts nothing tells where it begins and ends");
  }
  const AnswerForm& form = model.answer_form;
  const bool has_tools = !chat->tools.empty();
  const bool finds_calls =
      has_tools && chat->tool_choice != ToolChoice::kNone && form.calls != CallSyntax::kNone;
  if (finds_calls && format) {
    return InvalidField("format",
                        "binds the whole answer: beside chat.tools it needs the "
                        "tool_choice none");
  }
  if (finds_calls && WantsToolFormat(*chat)) {
    RETURN_IF_ERROR(ValidateChat(*chat, limits));
    format = ToolFormat(*chat, form);
  }
  if (format && !format->of_tools) {
    format->reasoning_begin = form.reasoning_begin;
    format->reasoning_end = form.reasoning_end;
  }
  AnswerReader::Options options;
  // The headers of messages would be text.
  const bool tells = has_tools || format || form.channels;
  options.tell_reasoning = output.has_reasoning() ? output.reasoning() : tells;
  const bool reads =
      finds_calls || form.channels || (options.tell_reasoning && !form.reasoning_begin.empty());
  if (!reads || !request.output.text) return std::nullopt;
  options.form = form;
  if (finds_calls) {
    for (const Tool& tool : chat->tools) options.tools.push_back(tool.name);
  }
  if (request.output.special_tokens) {
    options.form.marks.clear();  // they stand in the text as letters
  }
  for (const AnswerForm::Mark& mark : options.form.marks) request.output.marks.push_back(mark.id);
  return options;
}

void Put(AnswerPart part, v1::Delta& delta) {
  delta.set_text(std::move(part.text));
  delta.set_reasoning(std::move(part.reasoning));
  for (CallDelta& call : part.calls) {
    v1::ToolCallDelta& message = *delta.add_tool_calls();
    message.set_index(call.index);
    message.set_id(std::move(call.id));
    message.set_name(std::move(call.name));
    message.set_arguments(std::move(call.arguments));
    message.set_withdrawn(call.withdrawn);
  }
}

void MergeCalls(const v1::Delta& next, v1::Delta& last) {
  last.mutable_reasoning()->append(next.reasoning());
  for (const v1::ToolCallDelta& call : next.tool_calls()) {
    const int size = last.tool_calls_size();
    v1::ToolCallDelta* newest = size > 0 ? last.mutable_tool_calls(size - 1) : nullptr;
    if (newest == nullptr || newest->index() != call.index()) {
      *last.add_tool_calls() = call;
      continue;
    }
    newest->mutable_arguments()->append(call.arguments());
    newest->set_withdrawn(call.withdrawn());
  }
}

}  // namespace eta
