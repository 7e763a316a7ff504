// Conversion of the format of an answer.
#pragma once

#include "absl/status/statusor.h"
#include "engine/request/answers/answer_format.h"
#include "eta/v1/generate.pb.h"

namespace eta {

// Takes what the fields say; ValidateFormat (engine/request/answers/format_validation.h) judges the
// values. Errors are those of the form: no kind that this build knows, too many choices to look at.
absl::StatusOr<AnswerFormat> ToFormat(const v1::AnswerFormat& message);

}  // namespace eta
