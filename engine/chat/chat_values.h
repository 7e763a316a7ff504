// Messages and tools as values of a template, the way transformers passes them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/chat/chat.h"
#include "engine/chat/jinja/values/heap.h"
#include "engine/chat/jinja/values/value.h"

namespace eta {

// What stands in a text for the content of message `index` where that is token ids. It counts as
// the template's own, so nobody else can write it.
std::string PlaceOfTokens(size_t index);

// INVALID_ARGUMENT: text that is not UTF-8, arguments that are no JSON object. UNIMPLEMENTED: an
// integer of over 64 bits. RESOURCE_EXHAUSTED: a limit of the heap.
absl::StatusOr<jinja::Value> MessageValues(jinja::Heap& heap,
                                           const std::vector<ChatMessage>& messages);

// None where there are none. Errors as above.
absl::StatusOr<jinja::Value> ToolValues(jinja::Heap& heap, const std::vector<Tool>& tools);

}  // namespace eta
