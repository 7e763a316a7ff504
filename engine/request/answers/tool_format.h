// The format of an answer whose calls of tools are enforced.
#pragma once

#include <optional>

#include "engine/chat/chat.h"
#include "engine/chat/tools/answer_form.h"
#include "engine/request/answers/answer_format.h"

namespace eta {

// A structural tag of xgrammar's in the form of the model's own calls: one call or more where the
// chat wants them (tool_choice required, or a tool by name), each with arguments that its tool's
// parameters accept; of a model that calls bare or by messages exactly one. Else, with a strict
// tool, free text in which calls are such. Absent: the answer is not bound. REQUIRES: ValidateChat;
// form.calls is known, and not kChannel with the latter.
//
// Whether there is one tells WantsToolFormat, of any chat; MustCall, whether it is calls alone.
bool MustCall(const Chat& chat);
bool WantsToolFormat(const Chat& chat);
std::optional<AnswerFormat> ToolFormat(const Chat& chat, const AnswerForm& form);

}  // namespace eta
