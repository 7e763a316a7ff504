// Variables that a request brings along: one JSON object.
#pragma once

#include <cstddef>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/chat/jinja/interpreter.h"
#include "engine/chat/jinja/values/heap.h"

namespace eta::jinja {

// In the order of the text. INVALID_ARGUMENT: no JSON object, a key twice, over `max_bytes`, deeper
// than `max_depth`. UNIMPLEMENTED: an integer of over 64 bits.
absl::StatusOr<Variables> ParseVariables(Heap& heap, std::string_view json, size_t max_bytes,
                                         size_t max_depth);

}  // namespace eta::jinja
