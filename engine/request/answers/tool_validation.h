// Checks the tools of a chat, and the calls in its messages.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "engine/chat/chat.h"
#include "engine/chat/tools/answer_form.h"

namespace eta {

inline constexpr size_t kMaxParametersBytes = size_t{64} << 10;

// INVALID_ARGUMENT naming the field, as in chat.tools[3].name: number, names, no two equal, UTF-8
// of descriptions, JSON of parameters; a choice without tools, or of none of them.
absl::Status CheckTools(const Chat& chat);

// The same of chat.messages[3].tool_calls[1]: `field` names the message. Calls of the assistant
// only.
absl::Status CheckToolCalls(const ChatMessage& message, const std::string& field);

// The part of them about numbers, for whoever is about to make tools or calls.
absl::Status CheckToolCount(size_t count);
absl::Status CheckToolCallCount(const std::string& field, size_t count);

// FAILED_PRECONDITION (CHAT_UNSUPPORTED): the model's template shows no tools, or writes calls in a
// form that is not read.
absl::Status CheckToolsOfModel(const Chat& chat, const AnswerForm& form);

}  // namespace eta
