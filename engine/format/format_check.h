// Whether a format of an answer may be compiled at all, told before anything is spent on it.
#pragma once

#include "absl/status/status.h"
#include "engine/format/vocabulary.h"
#include "engine/request/answers/answer_format.h"

namespace eta {

// INVALID_ARGUMENT (INVALID_FIELD), the field and its limit named: what ValidateFormat
// (request/answers/format_validation.h) refuses, a NUL, markers of reasoning that are none or too
// long, a schema that cannot be enforced (schema/schema_check.h), also in a structural tag.
// `vocabulary` is the model's. Takes time in proportion to the text.
absl::Status CheckFormat(const AnswerFormat& format, const FormatVocabulary& vocabulary);

}  // namespace eta
