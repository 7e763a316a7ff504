// lint: untrusted-input, fuzz-covered
#include "service/generate/convert_format.h"

#include <string>

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/request/answers/format_validation.h"

namespace eta {

absl::StatusOr<AnswerFormat> ToFormat(const v1::AnswerFormat& message) {
  switch (message.kind_case()) {
    case v1::AnswerFormat::kJsonSchema:
      return AnswerFormat{.kind = AnswerFormatKind::kJsonSchema, .source = message.json_schema()};
    case v1::AnswerFormat::kJsonObject:
      return AnswerFormat{.kind = AnswerFormatKind::kJsonObject};
    case v1::AnswerFormat::kRegex:
      return AnswerFormat{.kind = AnswerFormatKind::kRegex, .source = message.regex()};
    case v1::AnswerFormat::kGrammar:
      return AnswerFormat{.kind = AnswerFormatKind::kGrammar, .source = message.grammar()};
    case v1::AnswerFormat::kChoice: {
      const auto& choices = message.choice().choices();
      RETURN_IF_ERROR(CheckChoiceCount(static_cast<size_t>(choices.size())));
      return AnswerFormat{.kind = AnswerFormatKind::kChoice,
                          .choices = {choices.begin(), choices.end()}};
    }
    case v1::AnswerFormat::kStructuralTag:
      return AnswerFormat{.kind = AnswerFormatKind::kStructuralTag,
                          .source = message.structural_tag()};
    case v1::AnswerFormat::KIND_NOT_SET:
      break;
  }
  return InvalidField("format",
                      "one of json_schema, json_object, regex, grammar, choice and structural_tag "
                      "must be set");
}

}  // namespace eta
