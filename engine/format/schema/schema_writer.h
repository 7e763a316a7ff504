// Says a schema anew for the library that compiles it, in the words that it enforces as they are
// meant.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/format/schema/schema_model.h"

namespace eta::schema {

// A JSON schema in ASCII. `model` is resolved. INVALID_ARGUMENT as RefuseSchema has it: a value of
// an enum that cannot be said. Without recursion: nodes stand side by side and refer to each other.
absl::StatusOr<std::string> WriteSchema(const SchemaModel& model);

}  // namespace eta::schema
