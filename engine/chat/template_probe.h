// What a chat template writes of its own: its literals, and what is told by rendering chats: of
// every role, with and without tools, calls and the beginning of an answer. So a token that it
// makes of parts ("<|" + role + "|>") is found as well as one that only other chats show.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/chat/chat_template.h"

namespace eta {

inline constexpr size_t kMaxProbedBytes = size_t{1} << 20;

// The literals and the stretches that the template wrote, each once; none of a template that is not
// understood. Once the stretches hold over kMaxProbedBytes together, no further chat is rendered.
// OutOfMemory, rather than a part of them.
absl::StatusOr<std::vector<std::string>> ProbeTemplate(std::string_view source,
                                                       const ChatTemplate::Tokens& tokens);

}  // namespace eta
