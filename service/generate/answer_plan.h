// What is made of the answer to a chat: which calls are looked for in it, whether its reasoning is
// told apart, and which format enforces its calls.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "engine/chat/tools/answer_reader.h"
#include "engine/request/answers/answer_format.h"
#include "engine/request/engine_info.h"
#include "engine/request/limits.h"
#include "engine/request/request.h"
#include "eta/v1/generate.pb.h"

namespace eta {

// How to read the answer, but for what only its prompt and seed tell; absent: it is text as it
// comes. Asks `request` for the marks that reading takes. `format`: what the message asks for; gets
// the one of its tools, and how the model reasons before it. INVALID_ARGUMENT: a format beside
// calls, reasoning without a chat; errors of ValidateChat where a format is made of tools.
absl::StatusOr<std::optional<AnswerReader::Options>> PlanAnswer(
    const v1::OutputOptions& output, const EngineInfo& model, const Limits& limits,
    Request& request, std::optional<AnswerFormat>& format);

// A part of an answer, put into the message that carries the rest of it.
void Put(AnswerPart part, v1::Delta& delta);

// Appends calls and reasoning of `next`: the newest call may go on in it.
void MergeCalls(const v1::Delta& next, v1::Delta& last);

}  // namespace eta
