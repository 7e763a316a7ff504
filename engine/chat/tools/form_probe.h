// What a chat template tells of the answers that it wants: it is asked to write chats with tools
// and calls, and what it writes is looked at.
#pragma once

#include "absl/status/statusor.h"
#include "engine/chat/chat_template.h"
#include "engine/chat/tools/answer_form.h"

namespace eta {

// Without `marks`, which a tokenizer has to name. What it refuses or writes otherwise than any form
// that is known is none of it. OutOfMemory.
absl::StatusOr<AnswerForm> ProbeAnswerForm(const ChatTemplate& chat_template);

// Marks that stand in answers of this form.
std::vector<std::string> MarksOf(const AnswerForm& form);

// Whether the text of a prompt ends inside of reasoning that the template has begun.
bool EndsInReasoning(const AnswerForm& form, const RenderedChat& rendered);

}  // namespace eta
