// From a template's source to its program.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/chat/jinja/program.h"

namespace eta::jinja {

// INVALID_ARGUMENT with the line: it is no template. UNIMPLEMENTED with the line: it is one that
// asks for what is not known here.
absl::StatusOr<std::unique_ptr<const Program>> Compile(std::string_view source);

}  // namespace eta::jinja
