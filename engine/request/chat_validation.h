// Checks a chat before a prompt is made of it. What a template makes of its messages is the
// template's to judge (engine/chat/chat_template.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/chat/chat.h"
#include "engine/request/limits.h"

namespace eta {

inline constexpr size_t kMaxChatMessages = 1024;
inline constexpr size_t kMaxChatNameBytes = 256;  // of a name, and of a tool_call_id

// INVALID_ARGUMENT naming the field, as in chat.messages[3].text: the number of messages, their
// roles, the bytes of all their texts together (limits.max_prompt_bytes), UTF-8, the JSON of the
// variables and their names.
absl::Status ValidateChat(const Chat& chat, const Limits& limits);

// Bytes of a chat's texts: contents, names and ids of its messages, and its variables.
int64_t ChatBytes(const Chat& chat);

}  // namespace eta
