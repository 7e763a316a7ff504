// JSON that a request brings along: its variables, schemas and arguments of tools.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/chat/jinja/interpreter.h"
#include "engine/chat/jinja/values/heap.h"
#include "engine/chat/jinja/values/value.h"

namespace eta::jinja {

// In the order of the text. INVALID_ARGUMENT: no JSON object, a key twice, over `max_bytes`, deeper
// than `max_depth`. UNIMPLEMENTED: an integer of over 64 bits.
absl::StatusOr<Variables> ParseVariables(Heap& heap, std::string_view json, size_t max_bytes,
                                         size_t max_depth);

// One object as a dict, in the order of the text; `what` begins the sentence of an error. Errors as
// above.
absl::StatusOr<Value> ParseObject(Heap& heap, const std::string& what, std::string_view json,
                                  size_t max_bytes, size_t max_depth);

}  // namespace eta::jinja
