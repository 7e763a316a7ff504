// Whether a format of an answer may be compiled at all, told before anything is spent on it.
#pragma once

#include "absl/status/status.h"
#include "engine/format/vocabulary.h"
#include "engine/request/answers/answer_format.h"

namespace eta {

// INVALID_ARGUMENT (INVALID_FIELD), the field and its limit named: too long, not UTF-8, too many
// choices, no choice or one twice, a schema that cannot be enforced (schema/schema_check.h).
// `vocabulary` is the model's. Takes time in proportion to the text.
absl::Status CheckFormat(const AnswerFormat& format, const FormatVocabulary& vocabulary);

}  // namespace eta
