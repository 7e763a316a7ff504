#include "engine/front/chat_prompts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "engine/chat/tools/form_probe.h"

namespace eta {
namespace {

constexpr char kField[] = "chat";
constexpr char kTemplateField[] = "chat_template";
// What templates of Harmony write before the text of an answer. One that is tokens has its own.
constexpr std::string_view kTextHeader = "<|channel|>final<|message|>";
constexpr size_t kMaxReasonBytes = 512;  // a template may say anything

absl::Status Unsupported(const std::string& why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, absl::StrCat(kField, ": ", why),
                   {.reason = "CHAT_UNSUPPORTED"});
}

// It is no judgement on a template or a chat: memory is short.
bool HasReason(const absl::Status& status) {
  return !GetErrorDetail(status).reason.empty();
}

// Cut between characters.
std::string Reason(const absl::Status& status) {
  std::string reason(status.message().substr(0, kMaxReasonBytes));
  reason.resize(FirstInvalidUtf8(reason).value_or(reason.size()));
  return reason;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatPrompts>> ChatPrompts::Create(const ChatTemplateSource& source,
                                                                 const Tokenizer& tokenizer) {
  std::unique_ptr<ChatPrompts> prompts(new ChatPrompts(tokenizer));
  const bool given = source.given.has_value();
  if (!given && !source.of_model) {
    prompts->refusal_ = "this model has no chat template";
    return prompts;
  }
  if (!tokenizer.knows_text()) {
    prompts->refusal_ = "this model came without a tokenizer";
    if (given) return InvalidField(kTemplateField, prompts->refusal_);
    return prompts;
  }
  auto parsed = ChatTemplate::Parse(
      given ? *source.given : *source.of_model,
      {.bos = std::string(tokenizer.bos_text()), .eos = std::string(tokenizer.eos_text())});
  if (parsed.ok()) {
    prompts->template_ = *std::move(parsed);
    RETURN_IF_ERROR(prompts->TellForm());
    return prompts;
  }
  if (HasReason(parsed.status())) return parsed.status();
  if (given) return InvalidField(kTemplateField, Reason(parsed.status()));
  prompts->refusal_ =
      absl::StrCat("this model's chat template is not understood: ", Reason(parsed.status()));
  prompts->template_refused_ = true;
  return prompts;
}

absl::Status ChatPrompts::Check(const std::string& given) {
  const auto parsed = ChatTemplate::Parse(given, {});
  return parsed.ok() ? absl::OkStatus() : InvalidField(kTemplateField, Reason(parsed.status()));
}

absl::StatusOr<RenderedChat> ChatPrompts::Render(const Chat& chat) const {
  if (template_ == nullptr) return Unsupported(refusal_);
  auto rendered = template_->Render(chat);
  if (absl::IsUnimplemented(rendered.status())) return Unsupported(Reason(rendered.status()));
  if (rendered.ok() || HasReason(rendered.status())) return rendered;
  return MakeError(
      absl::StatusCode::kInvalidArgument,
      absl::StrCat(kField, ": the chat template makes no prompt of it"),
      {.reason = "INVALID_FIELD", .field = kField, .unlogged = Reason(rendered.status())});
}

absl::Status ChatPrompts::TellForm() {
  ASSIGN_OR_RETURN(form_, ProbeAnswerForm(*template_));
  const std::vector<std::string> marks = MarksOf(form_);
  for (const int32_t id : tokenizer_.special_ids()) {
    const std::string text(tokenizer_.TokenText(id));
    if (std::find(marks.begin(), marks.end(), text) == marks.end()) continue;
    form_.marks.push_back({.id = id, .text = text});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ChatPrompts::Encode(const RenderedChat& rendered,
                                                         const Chat& chat) const {
  std::vector<int32_t> tokens;
  size_t begin = 0;
  const auto append = [&](size_t end) -> absl::Status {
    auto stretch = EncodeStretch(rendered, {begin, end}, /*follows=*/begin > 0);
    if (!stretch.ok()) return InField(kField, stretch.status());
    tokens.insert(tokens.end(), stretch->begin(), stretch->end());
    return absl::OkStatus();
  };
  for (const TokenTurn& turn : rendered.turns) {
    size_t end = turn.range.begin;
    if (form_.channels) {
      const auto before = std::string_view(rendered.text).substr(begin, end - begin);
      if (!before.ends_with(kTextHeader)) {
        return InvalidField(absl::StrCat(kField, ".messages[", turn.message, "].token_ids"),
                            "the template puts no answer there");
      }
      end -= kTextHeader.size();
    }
    RETURN_IF_ERROR(append(end));
    const std::vector<int32_t>& ids = *chat.messages[turn.message].token_ids;
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    begin = turn.range.end;
  }
  RETURN_IF_ERROR(append(rendered.text.size()));
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> ChatPrompts::EncodeStretch(const RenderedChat& rendered,
                                                                ByteRange stretch,
                                                                bool follows) const {
  if (stretch.begin == stretch.end) return std::vector<int32_t>();
  const auto encode = [&](const std::string& before) {
    std::vector<ByteRange> control;
    if (!before.empty()) control.push_back({0, before.size()});
    for (const ByteRange& range : rendered.control) {
      const size_t begin = std::max(range.begin, stretch.begin);
      const size_t end = std::min(range.end, stretch.end);
      if (begin >= end) continue;
      control.push_back(
          {before.size() + begin - stretch.begin, before.size() + end - stretch.begin});
    }
    // The template writes the beginning-of-text token where the model wants one.
    return tokenizer_.Encode(
        before + rendered.text.substr(stretch.begin, stretch.end - stretch.begin),
        /*add_bos=*/false, control);
  };
  auto tokens = encode("");
  const bool begins_a_text =
      tokens.ok() && !tokens->empty() && !tokenizer_.IsSpecial(tokens->front());
  if (!follows || !begins_a_text) return tokens;
  // It is none, so that it must not get what some models put before a text.
  const std::string end(tokenizer_.eos_text());
  const std::vector<int32_t>& ends = tokenizer_.eos_ids();
  auto behind = encode(end);
  if (!behind.ok() || behind->empty() ||
      std::find(ends.begin(), ends.end(), behind->front()) == ends.end()) {
    return tokens;
  }
  behind->erase(behind->begin());
  return behind;
}

int64_t TextBytes(const RenderedChat& rendered) {
  auto bytes = static_cast<int64_t>(rendered.text.size());
  for (const ByteRange& range : rendered.control) {
    bytes -= static_cast<int64_t>(range.end - range.begin);
  }
  return bytes;
}

}  // namespace eta
