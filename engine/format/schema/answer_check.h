// Whether a finished answer is what its JSON schema asks for, told without the library that led the
// answer there.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace eta {

// `schema` has passed CheckSchema. INTERNAL (ANSWER_INVALID) names the JSON pointer of the value in
// the answer and the keyword that it breaks; the answer itself it does not quote. Any thread.
absl::Status CheckAnswer(std::string_view schema, std::string_view answer);

}  // namespace eta
