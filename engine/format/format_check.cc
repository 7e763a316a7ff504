#include "engine/format/format_check.h"

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/format/format_limits.h"
#include "engine/format/schema/schema_check.h"
#include "engine/format/structural_tag.h"
#include "engine/request/answers/format_validation.h"
#include "engine/request/chat_validation.h"

namespace eta {
namespace {

constexpr char kReasoningBegin[] = "format.reasoning_begin";
constexpr char kReasoningEnd[] = "format.reasoning_end";

absl::Status CheckNul(const std::string& field, std::string_view text) {
  const size_t nul = text.find('\0');
  if (nul == std::string_view::npos) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("has a NUL at byte ", nul));
}

absl::Status CheckMarker(const std::string& field, std::string_view marker) {
  if (marker.size() > kMaxReasoningBytes) {
    return InvalidField(field, absl::StrCat("at most ", kMaxReasoningBytes, " bytes"));
  }
  RETURN_IF_ERROR(CheckUtf8Field(field, marker));
  return CheckNul(field, marker);
}

absl::Status CheckReasoning(const AnswerFormat& format) {
  RETURN_IF_ERROR(CheckMarker(kReasoningBegin, format.reasoning_begin));
  RETURN_IF_ERROR(CheckMarker(kReasoningEnd, format.reasoning_end));
  if (!format.reasoning_end.empty() || format.reasoning_begin.empty()) return absl::OkStatus();
  return InvalidField(kReasoningEnd, absl::StrCat("must be there beside ", kReasoningBegin));
}

}  // namespace

absl::Status CheckFormat(const AnswerFormat& format, const FormatVocabulary& vocabulary) {
  RETURN_IF_ERROR(CheckReasoning(format));
  RETURN_IF_ERROR(ValidateFormat(format));
  RETURN_IF_ERROR(CheckNul(FieldOf(format.kind), format.source));
  for (size_t i = 0; i < format.choices.size(); ++i) {
    RETURN_IF_ERROR(CheckNul(FieldOfChoice(i), format.choices[i]));
  }
  if (format.kind == AnswerFormatKind::kJsonSchema) return CheckSchema(format.source);
  if (format.kind == AnswerFormatKind::kStructuralTag) {
    return ReadStructuralTag(format.source, vocabulary).status();
  }
  return absl::OkStatus();
}

}  // namespace eta
