// Whether a finished answer is what its JSON schema asks for, told without the library that led the
// answer there. Not by libvalijson of Debian 12: it knows draft 7 only, matches by std::regex,
// which overflows the stack on long strings, and goes by recursion.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace eta {

// `schema` has passed CheckSchema. INTERNAL (ANSWER_INVALID) names the keyword that the answer
// breaks, or where it is no JSON; unlogged, the JSON pointer of the value that breaks it. Formats
// of strings are annotations here. RESOURCE_EXHAUSTED: no memory. Any thread.
absl::Status CheckAnswer(std::string_view schema, std::string_view answer);

}  // namespace eta
