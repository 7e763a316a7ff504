// Which JSON schemas an answer can be bound by: those whose every keyword is enforced as it is
// meant. A white list by keyword, for the library that engine/format compiles schemas with.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eta {

// Whether all that `schema` asks for is enforced. Else INVALID_ARGUMENT (INVALID_FIELD), field
// format.json_schema: the JSON pointer of the keyword, and why it cannot be; or which limit it is
// beyond. RESOURCE_EXHAUSTED: no memory. Any thread.
absl::Status CheckSchema(std::string_view schema);

// `schema` in the words that the library enforces as they are meant, to be compiled in its place:
// with strict_mode, and the library's patch. The errors are those of CheckSchema. An answer that it
// lets pass satisfies `schema`. Of those that do, it refuses
// - objects whose keys are not in the order of `properties`, and white space as the compiler bounds
//   it;
// - keys and items that a schema with properties or prefixItems does not name, where it says
// nothing
//   of additionalProperties or items, as OpenAI's and vLLM's servers do;
// - 1.0 for an integer; exponents, or over six digits behind the point, where numbers have bounds;
// - values of enum and const that are spelled otherwise;
// - escapes in strings with lengths, patterns or formats, and in keys beside additionalProperties;
// - strings that are not what a standard format asks for.
absl::StatusOr<std::string> EnforceableSchema(std::string_view schema);

}  // namespace eta
