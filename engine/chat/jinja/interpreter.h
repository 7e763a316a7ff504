// Runs a program: the machine whose code it is.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/chat/chat.h"
#include "engine/chat/jinja/program.h"
#include "engine/chat/jinja/values/heap.h"
#include "engine/chat/jinja/values/value.h"

namespace eta::jinja {

// What a template finds by its names, besides the functions of the environment.
using Variables = std::vector<std::pair<std::string, Value>>;

// Errors name the line. RESOURCE_EXHAUSTED: a limit of the heap, or over `output_bytes` of text.
absl::StatusOr<RenderedChat> Interpret(const Program& program, const Variables& variables,
                                       Heap& heap, size_t output_bytes);

}  // namespace eta::jinja
