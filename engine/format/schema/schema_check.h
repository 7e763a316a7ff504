// Which JSON schemas an answer can be bound by: those whose every keyword is enforced as it is
// meant. A white list by keyword, for the library that engine/format compiles schemas with.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace eta {

// Whether all that `schema` asks for is enforced. Else INVALID_ARGUMENT (INVALID_FIELD), field
// format.json_schema: the JSON pointer of the keyword, and why it cannot be; or which limit it is
// beyond. Takes time and memory in proportion to the text. Any thread.
absl::Status CheckSchema(std::string_view schema);

}  // namespace eta
