#include "engine/request/answers/tool_format.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

// Formats of xgrammar's, as JSON. Schemas stand in them as the caller wrote them: the order of
// their properties counts.
std::string Quote(std::string_view text) {
  return nlohmann::json(std::string(text)).dump();
}

std::string ConstText(std::string_view text) {
  return absl::StrCat(R"({"type":"const_string","value":)", Quote(text), "}");
}

std::string Token(int32_t id) {
  return absl::StrCat(R"({"type":"token","token":)", id, "}");
}

std::string Sequence(const std::vector<std::string>& elements) {
  if (elements.size() == 1) return elements.front();
  return absl::StrCat(R"({"type":"sequence","elements":[)", absl::StrJoin(elements, ","), "]}");
}

std::string Either(const std::vector<std::string>& elements) {
  if (elements.size() == 1) return elements.front();
  return absl::StrCat(R"({"type":"or","elements":[)", absl::StrJoin(elements, ","), "]}");
}

std::string OneOrMore(const std::string& content) {
  return absl::StrCat(R"({"type":"plus","content":)", content, "}");
}

std::string SchemaOf(const Tool& tool) {
  return absl::StrCat(R"({"type":"json_schema","json_schema":)",
                      tool.parameters_json.empty() ? kNoParameters : tool.parameters_json, "}");
}

std::string Tag(const std::string& begin, const std::string& content, std::string_view end) {
  return absl::StrCat(R"({"type":"tag","begin":)", begin, R"(,"content":)", content, R"(,"end":)",
                      Quote(end), "}");
}

// What stands between the reasoning and the call.
constexpr char kBetweenMessages[] = "<|end|><|start|>assistant";

// Builds formats for one chat.
class Builder {
 public:
  Builder(const AnswerForm& form, std::vector<const Tool*> tools)
      : form_(form), tools_(std::move(tools)) {
    if (form.calls == CallSyntax::kTagged) mark_ = kTagBegin;
    if (form.calls == CallSyntax::kMistral) mark_ = kMistralCalls;
    // Of Mistral's list "[" is the list's, and so is "]" of the end.
    is_list_ = form.calls == CallSyntax::kMistral && form.end.ends_with("]");
  }

  // One call or more, and nothing else.
  std::string Calls() const {
    if (form_.calls == CallSyntax::kBare) return Either(Groups());
    std::vector<std::string> groups;
    for (const std::string& group : Groups()) {
      std::vector<std::string> elements;
      AddPieces(mark_, elements);
      elements.push_back(group);
      groups.push_back(Sequence(elements));
    }
    if (is_list_) return Sequence({groups.front(), ConstText("]")});
    if (form_.calls != CallSyntax::kTagged) return OneOrMore(Either(groups));
    return OneOrMore(
        Sequence({Either(groups), R"({"type":"optional","content":)" + ConstText("\n") + "}"}));
  }

  // One message to a tool; what ends it ends the answer. Templates name the tool before the
  // channel, and models behind it.
  std::string MessageToTool() const {
    std::vector<std::string> messages;
    for (const Tool* tool : tools_) {
      const std::string to = form_.begin + tool->name;
      for (const std::string& header : {absl::StrCat(kMessageChannel, "commentary ", to, " ",
                                                     kMessageConstrain, "json", kMessageText),
                                        absl::StrCat(" ", to, form_.middle)}) {
        std::vector<std::string> elements;
        AddPieces(header, elements);
        elements.push_back(SchemaOf(*tool));
        messages.push_back(Sequence(elements));
      }
    }
    return Either(messages);
  }

  // Free text with calls.
  std::string TextWithCalls() const {
    if (form_.calls == CallSyntax::kBare) {
      // What begins as a call is one.
      std::vector<std::string> elements = Groups();
      elements.push_back(R"({"type":"regex","pattern":"([^{\\s][\\s\\S]*)?"})");
      return Either(elements);
    }
    const auto special = std::find_if(form_.marks.begin(), form_.marks.end(),
                                      [&](const auto& known) { return known.text == mark_; });
    const bool is_token = special != form_.marks.end();
    const std::string begin = is_token ? Token(special->id) : Quote(mark_);
    std::vector<std::string> tags;
    for (const std::string& group : Groups())
      tags.push_back(Tag(begin, group, is_list_ ? "]" : ""));
    return absl::StrCat(is_token ? R"({"type":"token_triggered_tags","trigger_tokens":[)"
                                 : R"({"type":"triggered_tags","triggers":[)",
                        is_token ? absl::StrCat(special->id) : Quote(mark_), R"(],"tags":[)",
                        absl::StrJoin(tags, ","), "]}");
  }

 private:
  // What may stand behind the mark: a call of each tool, or the list of all up to its end.
  std::vector<std::string> Groups() const {
    std::vector<std::string> groups;
    const std::string begin = form_.begin.substr(mark_.size());
    if (is_list_) {
      const size_t object = begin.find('{');
      const std::string end = form_.end.substr(0, form_.end.size() - 1);
      std::vector<std::string> tags;
      for (const Tool* tool : tools_) {
        tags.push_back(
            Tag(Quote(begin.substr(object) + tool->name + form_.middle), SchemaOf(*tool), end));
      }
      std::vector<std::string> elements;
      AddPieces(begin.substr(0, object), elements);
      elements.push_back(absl::StrCat(R"({"type":"tags_with_separator","separator":", ",)",
                                      R"("at_least_one":true,"tags":[)", absl::StrJoin(tags, ","),
                                      "]}"));
      return {Sequence(elements)};
    }
    for (const Tool* tool : tools_) {
      std::vector<std::string> elements;
      AddPieces(begin + tool->name + form_.middle, elements);
      elements.push_back(SchemaOf(*tool));
      AddPieces(form_.end, elements);
      groups.push_back(Sequence(elements));
    }
    return groups;
  }

  // A text, in which marks that are special tokens are these tokens.
  void AddPieces(std::string_view text, std::vector<std::string>& elements) const {
    while (!text.empty()) {
      size_t at = text.size();
      const AnswerForm::Mark* next = nullptr;
      for (const AnswerForm::Mark& mark : form_.marks) {
        const size_t found = text.find(mark.text);
        if (found >= at) continue;
        at = found;
        next = &mark;
      }
      if (at > 0) elements.push_back(ConstText(text.substr(0, at)));
      if (next == nullptr) return;
      elements.push_back(Token(next->id));
      text.remove_prefix(at + next->text.size());
    }
  }

  const AnswerForm& form_;
  const std::vector<const Tool*> tools_;
  std::string mark_;  // that begins calls; empty: they are bare
  bool is_list_ = false;
};

}  // namespace

bool MustCall(const Chat& chat) {
  return chat.tool_to_call || chat.tool_choice == ToolChoice::kRequired;
}

bool WantsToolFormat(const Chat& chat) {
  if (MustCall(chat)) return !chat.tools.empty();
  return chat.tool_choice != ToolChoice::kNone &&
         std::any_of(chat.tools.begin(), chat.tools.end(),
                     [](const Tool& tool) { return tool.strict; });
}

std::optional<AnswerFormat> ToolFormat(const Chat& chat, const AnswerForm& form) {
  if (!WantsToolFormat(chat)) return std::nullopt;
  const bool must_call = MustCall(chat);
  static const Tool kAnyArguments = {
      .name = {}, .description = {}, .parameters_json = R"({"type":"object"})"};
  std::vector<Tool> loose;
  loose.reserve(chat.tools.size());
  std::vector<const Tool*> tools;
  for (const Tool& tool : chat.tools) {
    if (chat.tool_to_call && tool.name != *chat.tool_to_call) continue;
    if (must_call || tool.strict) {
      tools.push_back(&tool);
      continue;
    }
    loose.push_back(kAnyArguments);
    loose.back().name = tool.name;
    tools.push_back(&loose.back());
  }
  const Builder builder(form, std::move(tools));
  const bool is_message = form.calls == CallSyntax::kChannel;
  AnswerFormat format{.kind = AnswerFormatKind::kStructuralTag, .source = {}, .choices = {}};
  format.source = absl::StrCat(R"({"type":"structural_tag","format":)",
                               !must_call   ? builder.TextWithCalls()
                               : is_message ? builder.MessageToTool()
                                            : builder.Calls(),
                               "}");
  format.reasoning_begin = form.reasoning_begin;
  format.reasoning_end = is_message ? kBetweenMessages : form.reasoning_end;
  format.of_tools = true;
  return format;
}

}  // namespace eta
