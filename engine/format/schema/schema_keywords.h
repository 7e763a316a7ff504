// What the keywords of JSON Schema are to this server.
#pragma once

#include <string_view>

#include "engine/format/schema/schema_model.h"

namespace eta::schema {

// It asks nothing of a value. So do those of OpenAPI, and names that begin with x-.
bool IsAnnotation(std::string_view keyword);

// It asks something that the library takes no notice of, or takes wrongly.
bool IsNotEnforced(std::string_view keyword);

// One bit; 0 for what is no type.
Types TypeNamed(std::string_view name);

}  // namespace eta::schema
