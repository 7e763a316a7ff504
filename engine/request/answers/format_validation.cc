// lint: untrusted-input, fuzz-covered
#include "engine/request/answers/format_validation.h"

#include <string>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/request/chat_validation.h"

namespace eta {
namespace {

constexpr char kChoices[] = "format.choice.choices";

absl::Status CheckChoices(const AnswerFormat& format) {
  RETURN_IF_ERROR(CheckChoiceCount(format.choices.size()));
  if (FormatBytes(format) > int64_t{kMostFormatBytes}) {
    return InvalidField(kChoices, absl::StrCat("at most ", kMostFormatBytes, " bytes in all"));
  }
  std::unordered_set<std::string_view> seen;
  for (size_t i = 0; i < format.choices.size(); ++i) {
    const std::string& choice = format.choices[i];
    const std::string field = FieldOfChoice(i);
    if (choice.empty()) return InvalidField(field, "must not be empty");
    RETURN_IF_ERROR(CheckUtf8Field(field, choice));
    if (!seen.insert(choice).second) return InvalidField(field, "is there twice");
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(AnswerFormatKind kind) {
  constexpr std::string_view kNames[kAnswerFormatKinds] = {
      "json_schema", "json_object", "regex", "grammar", "choice", "structural_tag"};
  return kNames[static_cast<size_t>(kind)];
}

std::string FieldOf(AnswerFormatKind kind) {
  return absl::StrCat("format.", std::string(Name(kind)));
}

std::string FieldOfChoice(size_t i) {
  return absl::StrCat(kChoices, "[", i, "]");
}

absl::Status ValidateFormat(const AnswerFormat& format) {
  if (format.kind == AnswerFormatKind::kJsonObject) return absl::OkStatus();
  if (format.kind == AnswerFormatKind::kChoice) return CheckChoices(format);
  const std::string field = FieldOf(format.kind);
  if (format.source.empty()) return InvalidField(field, "must not be empty");
  if (format.of_tools && format.source.size() > kMostToolFormatBytes) {
    return InvalidField(field, absl::StrCat("at most ", kMostToolFormatBytes,
                                            " bytes, made of the parameters of all tools"));
  }
  if (!format.of_tools && format.source.size() > kMostFormatBytes) {
    return InvalidField(field, absl::StrCat("at most ", kMostFormatBytes, " bytes"));
  }
  return CheckUtf8Field(field, format.source);
}

absl::Status CheckChoiceCount(size_t count) {
  if (count == 0) return InvalidField(kChoices, "must not be empty");
  if (count <= kMostChoices) return absl::OkStatus();
  return InvalidField(kChoices, absl::StrCat("at most ", kMostChoices, " choices"));
}

int64_t FormatBytes(const AnswerFormat& format) {
  auto bytes = static_cast<int64_t>(format.source.size());
  for (const std::string& choice : format.choices) bytes += static_cast<int64_t>(choice.size());
  return bytes;
}

}  // namespace eta
