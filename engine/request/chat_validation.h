// Checks a chat before a prompt is made of it. What a template makes of its messages is the
// template's to judge (engine/chat/chat_template.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/chat/chat.h"
#include "engine/request/limits.h"

namespace eta {

inline constexpr size_t kMaxChatMessages = 1024;
inline constexpr size_t kMaxChatNameBytes = 256;  // of a name, and of a tool_call_id

// INVALID_ARGUMENT naming the field, as in chat.messages[3].text: the number of messages, their
// roles, the bytes of all their texts and the tools together (limits.max_prompt_bytes), UTF-8, the
// JSON of the variables and their names; calls, tools and the choice among them
// (tool_validation.h); the number of token ids, not their values.
absl::Status ValidateChat(const Chat& chat, const Limits& limits);

// The part of it about the number of messages, for whoever is about to make them.
absl::Status CheckMessageCount(size_t count);

// InvalidField with the first byte that is not UTF-8.
absl::Status CheckUtf8Field(const std::string& field, std::string_view text);

// Bytes of a chat's texts: contents, names, ids and calls of its messages, its tools and variables.
int64_t ChatBytes(const Chat& chat);

// Token ids that it brings along.
int64_t TokensIn(const Chat& chat);

}  // namespace eta
