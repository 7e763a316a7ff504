// Values as JSON: Python's json.dumps, as transformers' filter tojson calls it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/chat/jinja/values/value.h"

namespace eta::jinja {

struct JsonStyle {
  bool ascii = false;                 // ensure_ascii
  std::optional<std::string> indent;  // of one level
};

// INVALID_ARGUMENT for what JSON does not have.
absl::StatusOr<Value> JsonText(Heap& heap, const Value& value, const JsonStyle& style);

}  // namespace eta::jinja
