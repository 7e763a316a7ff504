#include "engine/format/format_check.h"

#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "engine/format/format_limits.h"
#include "engine/format/schema/schema_check.h"
#include "engine/format/structural_tag.h"
#include "engine/request/answers/format_validation.h"

namespace eta {
namespace {

absl::Status CheckText(const std::string& field, std::string_view text, size_t most) {
  if (text.size() > most) {
    return InvalidField(field, absl::StrCat("at most ", most, " bytes, not ", text.size()));
  }
  if (const auto offset = FirstInvalidUtf8(text)) {
    return InvalidField(field, absl::StrCat("is not UTF-8 at byte ", *offset));
  }
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return InvalidField(field, absl::StrCat("has a NUL at byte ", nul));
  }
  return absl::OkStatus();
}

absl::Status CheckChoices(const AnswerFormat& format) {
  const std::string field = FieldOf(format.kind);
  if (format.choices.empty() || format.choices.size() > kMostChoices) {
    return InvalidField(
        field, absl::StrCat("1 to ", kMostChoices, " choices, not ", format.choices.size()));
  }
  size_t bytes = 0;
  std::set<std::string_view> seen;
  for (const std::string& choice : format.choices) {
    if (choice.empty()) return InvalidField(field, "a choice must not be empty");
    bytes += choice.size();
    RETURN_IF_ERROR(CheckText(field, choice, kMostFormatBytes));
    if (!seen.insert(choice).second) return InvalidField(field, "no choice may be there twice");
  }
  if (bytes > kMostFormatBytes) {
    return InvalidField(field,
                        absl::StrCat("at most ", kMostFormatBytes, " bytes in all, not ", bytes));
  }
  return absl::OkStatus();
}

absl::Status CheckReasoning(const AnswerFormat& format) {
  RETURN_IF_ERROR(CheckText("format.reasoning_begin", format.reasoning_begin, kMaxReasoningBytes));
  RETURN_IF_ERROR(CheckText("format.reasoning_end", format.reasoning_end, kMaxReasoningBytes));
  if (format.reasoning_end.empty() && !format.reasoning_begin.empty()) {
    return InvalidField("format.reasoning_end", "must be there beside format.reasoning_begin");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFormat(const AnswerFormat& format, const FormatVocabulary& vocabulary) {
  RETURN_IF_ERROR(CheckReasoning(format));
  if (format.kind == AnswerFormatKind::kChoice) return CheckChoices(format);
  if (format.kind == AnswerFormatKind::kJsonObject) return absl::OkStatus();
  const std::string field = FieldOf(format.kind);
  if (format.source.empty()) return InvalidField(field, "must not be empty");
  RETURN_IF_ERROR(CheckText(field, format.source, kMostFormatBytes));
  if (format.kind == AnswerFormatKind::kJsonSchema) return CheckSchema(format.source);
  if (format.kind == AnswerFormatKind::kStructuralTag) {
    return ReadStructuralTag(format.source, vocabulary).status();
  }
  return absl::OkStatus();
}

}  // namespace eta
