#include "engine/front/chat_prompts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/utf8.h"

namespace eta {
namespace {

constexpr char kField[] = "chat";
constexpr char kTemplateField[] = "chat_template";
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

absl::StatusOr<std::vector<int32_t>> ChatPrompts::Encode(const RenderedChat& rendered) const {
  // The template writes the beginning-of-text token where the model wants one.
  auto tokens = tokenizer_.Encode(rendered.text, /*add_bos=*/false, rendered.control);
  if (!tokens.ok()) return InField(kField, tokens.status());
  return tokens;
}

int64_t TextBytes(const RenderedChat& rendered) {
  auto bytes = static_cast<int64_t>(rendered.text.size());
  for (const ByteRange& range : rendered.control) {
    bytes -= static_cast<int64_t>(range.end - range.begin);
  }
  return bytes;
}

}  // namespace eta
