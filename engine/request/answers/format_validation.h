// Checks what an answer must be, before anything is made of it. Whether a schema, an expression or
// a grammar is one, and can be enforced, is its compiler's to judge (engine/format).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/request/answers/answer_format.h"

namespace eta {

inline constexpr size_t kMostFormatBytes = 64 * 1024;        // of a source, or of all choices
inline constexpr size_t kMostToolFormatBytes = 1024 * 1024;  // of a source that is made of tools
inline constexpr size_t kMostChoices = 1024;

// "json_schema", "json_object", "regex", "grammar", "choice", "structural_tag": the field of
// `format`, and what logs and metrics call it.
std::string_view Name(AnswerFormatKind kind);
// The field of a request: "format.json_schema", ...
std::string FieldOf(AnswerFormatKind kind);
// "format.choice.choices[3]".
std::string FieldOfChoice(size_t i);

// InvalidField, as in format.regex or format.choice.choices[3]: the bytes of a source, the number
// and bytes of choices, none empty, no two equal; UTF-8.
absl::Status ValidateFormat(const AnswerFormat& format);

// The part of it about the number of choices, for whoever is about to make them.
absl::Status CheckChoiceCount(size_t count);

// Of its source and choices.
int64_t FormatBytes(const AnswerFormat& format);

}  // namespace eta
