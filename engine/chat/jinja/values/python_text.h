// Values as text: Python's str() and repr().
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/chat/jinja/values/text_builder.h"
#include "engine/chat/jinja/values/value.h"

namespace eta::jinja {

// UNIMPLEMENTED for what Python would show by its address in memory.
absl::Status AppendStr(Heap& heap, const Value& value, TextBuilder& out);
// A text for itself, else str() as a text.
absl::StatusOr<Value> ToText(Heap& heap, const Value& value);

std::string RealText(double real);  // repr of a float

}  // namespace eta::jinja
