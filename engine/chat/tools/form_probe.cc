#include "engine/chat/tools/form_probe.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/chat/tools/json_cursor.h"

namespace eta {
namespace {

constexpr std::string_view kProbeName = "probe_a_tool";
constexpr std::string_view kProbeArguments = R"({"probe_key": "probe value"})";
// As long as those that the server makes, so that a template that wants them short refuses it.
constexpr std::string_view kLongId = "call_0123456789abcdefghijklmn";
constexpr std::string_view kShortId = "probe1234";

constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kReasoning = {
    {{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}}};

// Of Harmony, whose templates write them as wholes. Answers that are bound to a form go from
// reasoning to the text at once.
constexpr std::string_view kReasoningChannel = "<|channel|>analysis<|message|>";
constexpr std::string_view kTextBehindReasoning =
    "<|end|><|start|>assistant<|channel|>final<|message|>";
constexpr std::string_view kCallOfChannel = "to=functions.";

struct Probe {
  bool system = false;
  bool call = false;
  bool result = false;  // behind the call
  bool tools = true;
  std::string_view id = kLongId;
};

Chat ChatOf(const Probe& probe) {
  Chat chat;
  const auto add = [&](const char* role, const char* content) -> ChatMessage& {
    ChatMessage& message = chat.messages.emplace_back();
    message.role = role;
    message.content = content;
    return message;
  };
  if (probe.system) add("system", "probe");
  add("user", "probe");
  if (probe.call) {
    add("assistant", "")
        .tool_calls.push_back({.id = std::string(probe.id),
                               .name = std::string(kProbeName),
                               .arguments_json = std::string(kProbeArguments)});
    chat.add_generation_prompt = false;
  }
  if (probe.result) {
    ChatMessage& result = add("tool", "probe");
    result.name = kProbeName;
    result.tool_call_id = probe.id;
  }
  if (probe.tools) {
    Tool& tool = chat.tools.emplace_back();
    tool.name = kProbeName;
    tool.description = "probe";
    tool.parameters_json =
        R"({"type":"object","properties":{"probe_key":{"type":"string","description":"probe"}},)"
        R"("required":["probe_key"]})";
  }
  return chat;
}

// The text; absent where the template refuses the chat.
absl::StatusOr<std::optional<std::string>> TextOf(const ChatTemplate& chat_template,
                                                  const Probe& probe) {
  auto rendered = chat_template.Render(ChatOf(probe));
  if (rendered.ok()) return std::move(rendered->text);
  if (!GetErrorDetail(rendered.status()).reason.empty()) return rendered.status();
  return std::nullopt;
}

std::string_view WithoutTrailingBlanks(std::string_view text) {
  while (!text.empty() && IsJsonSpace(text.back())) text.remove_suffix(1);
  return text;
}

// Takes `end` off the end of `text`, and white space behind it. False: it does not stand there.
bool TakeEnd(std::string_view end, std::string_view& text) {
  const std::string_view trimmed = WithoutTrailingBlanks(text);
  if (!trimmed.ends_with(end)) return false;
  text = trimmed.substr(0, trimmed.size() - end.size());
  return true;
}

// What stands before and behind `text`, of which it takes `begin`; white space may stand first.
bool TakeBegin(std::string_view begin, std::string_view& text) {
  const auto first = std::find_if_not(text.begin(), text.end(), IsJsonSpace);
  const auto blanks = static_cast<size_t>(first - text.begin());
  if (!text.substr(blanks).starts_with(begin)) return false;
  text.remove_prefix(blanks + begin.size());
  return true;
}

// How the template wrote the call in `text`, whose beginning up to the answer is `prompt` where
// that is known.
void ReadCall(std::string_view text, std::optional<std::string_view> prompt, AnswerForm& form) {
  const size_t name = text.rfind(kProbeName, text.rfind(kProbeArguments));
  if (name == std::string_view::npos) return;
  const size_t arguments = text.find(kProbeArguments, name);
  if (arguments == std::string_view::npos) return;
  const std::string_view before = text.substr(0, name);
  const std::string_view middle =
      text.substr(name + kProbeName.size(), arguments - name - kProbeName.size());
  const std::string_view behind = text.substr(arguments + kProbeArguments.size());
  const auto set = [&](CallSyntax calls, std::string_view rest, std::string_view tail) {
    form.calls = calls;
    form.begin = before.substr(rest.size());
    form.middle = middle;
    form.end = behind.substr(0, behind.size() - tail.size());
  };

  std::string_view rest = before;
  if (form.channels) {
    if (!before.ends_with(kCallOfChannel) || !middle.ends_with(kMessageText)) return;
    rest.remove_suffix(kCallOfChannel.size());
    std::string_view tail = behind;
    if (TakeBegin(kMessageCall, tail)) set(CallSyntax::kChannel, rest, tail);
    return;
  }
  if (middle.ends_with(kMistralArguments) && TakeEnd(kMistralCalls, rest)) {
    set(CallSyntax::kMistral, rest, behind);
    form.middle = kMistralArguments;  // an id is the template's
    return;
  }
  std::string_view between = middle;
  const bool is_object = TakeEnd("\"", rest) && TakeEnd(":", rest) && TakeEnd("\"name\"", rest) &&
                         TakeEnd("{", rest) && TakeBegin("\"", between) &&
                         TakeBegin(",", between) && TakeEnd(":", between);
  if (!is_object) return;
  const std::string_view key = WithoutTrailingBlanks(between);
  if (!key.ends_with("\"arguments\"") && !key.ends_with("\"parameters\"")) return;
  // Templates of Mistral put an id behind the arguments of an earlier call.
  std::string_view object = rest;
  if (TakeEnd("[", rest) && TakeEnd(kMistralCalls, rest)) {
    set(CallSyntax::kMistral, rest, behind);
    form.end = "}]";
    return;
  }
  rest = object;
  std::string_view tail = behind;
  if (!TakeBegin("}", tail)) return;
  const std::string_view closed = tail;
  if (TakeBegin(kTagEnd, tail) && TakeEnd(kTagBegin, rest)) {
    set(CallSyntax::kTagged, rest, tail);
  } else if (prompt && object == *prompt) {
    set(CallSyntax::kBare, object, closed);
  }
}

absl::Status ProbeCalls(const ChatTemplate& chat_template, AnswerForm& form) {
  for (const std::string_view id : {kLongId, kShortId}) {
    for (const bool system : {false, true}) {
      ASSIGN_OR_RETURN(const auto prompt, TextOf(chat_template, {.system = system}));
      for (const bool result : {false, true}) {
        ASSIGN_OR_RETURN(
            const auto text,
            TextOf(chat_template, {.system = system, .call = true, .result = result, .id = id}));
        if (!text) continue;
        ReadCall(*text, prompt, form);
        if (form.calls == CallSyntax::kNone) continue;
        form.short_ids = id == kShortId;
        return absl::OkStatus();
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AnswerForm> ProbeAnswerForm(const ChatTemplate& chat_template) {
  AnswerForm form;
  const std::vector<std::string> literals = chat_template.Literals();
  form.channels = std::ranges::any_of(literals, [](const std::string& text) {
    return text.find(kReasoningChannel) != std::string::npos;
  });
  if (form.channels) {
    form.reasoning_begin = kReasoningChannel;
    form.reasoning_end = kTextBehindReasoning;
  }
  for (const auto& [begin, end_of_it] : kReasoning) {
    if (form.channels) break;
    const std::string_view end = end_of_it;  // Clang 14 captures no structured binding
    const bool writes = std::ranges::any_of(
        literals, [&](const std::string& text) { return text.find(end) != std::string::npos; });
    if (!writes) continue;
    form.reasoning_begin = begin;
    form.reasoning_end = end;
    break;
  }
  for (const bool system : {false, true}) {
    ASSIGN_OR_RETURN(const auto with, TextOf(chat_template, {.system = system}));
    ASSIGN_OR_RETURN(const auto without, TextOf(chat_template, {.system = system, .tools = false}));
    const bool shown = with && with->find(kProbeName) != std::string::npos;
    form.shows_tools = form.shows_tools || (shown && with != without);
  }
  if (form.shows_tools) RETURN_IF_ERROR(ProbeCalls(chat_template, form));
  return form;
}

std::vector<std::string> MarksOf(const AnswerForm& form) {
  if (form.channels) {
    return {kMessageStart, kMessageChannel, kMessageText,  kMessageConstrain,
            kMessageEnd,   kMessageCall,    kMessageReturn};
  }
  std::vector<std::string> marks;
  switch (form.calls) {
    case CallSyntax::kNone:
    case CallSyntax::kChannel:
      break;
    case CallSyntax::kTagged:
      marks = {kTagBegin, kTagEnd};
      break;
    case CallSyntax::kBare:
      marks = {kPythonTag};
      break;
    case CallSyntax::kMistral:
      marks = {kMistralCalls, kMistralId, kMistralArguments};
      break;
  }
  if (!form.reasoning_begin.empty()) {
    marks.push_back(form.reasoning_begin);
    marks.push_back(form.reasoning_end);
  }
  return marks;
}

bool EndsInReasoning(const AnswerForm& form, const RenderedChat& rendered) {
  if (form.reasoning_begin.empty()) return false;
  const std::string_view text = WithoutTrailingBlanks(rendered.text);
  if (!text.ends_with(form.reasoning_begin)) return false;
  const size_t begin = text.size() - form.reasoning_begin.size();
  const std::vector<ByteRange> control = JoinTouching(rendered.control);
  return std::ranges::any_of(control, [&](const ByteRange& range) {
    return range.begin <= begin && text.size() <= range.end;
  });
}

}  // namespace eta
