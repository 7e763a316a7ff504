// Conversion of a chat, the prompt of Generate that is a conversation.
#pragma once

#include "absl/status/statusor.h"
#include "engine/chat/chat.h"
#include "eta/v1/generate.pb.h"

namespace eta {

// Takes what the fields say; ValidateChat (engine/request/chat_validation.h) judges the values.
// Errors are those of the form: too many messages, parts, tools or calls to look at, a role, a
// choice or a kind of part that this build does not know, a message with neither content nor calls.
// Parts of a message become one text.
absl::StatusOr<Chat> ToChat(const v1::Chat& message);

}  // namespace eta
