// Tools and their calls in the words of OpenAI's API, as files have them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "eta/v1/chat.pb.h"
#include "nlohmann/json.hpp"

namespace eta::ctl {

// Reads a file: a JSON list of {"type": "function", "function": {"name", "description",
// "parameters", "strict"}}, or of what stands in `function`. INVALID_ARGUMENT, with a sentence for
// the user.
absl::Status ReadTools(const std::string& file, v1::Chat* chat);

// auto, none, required, or the name of a tool.
v1::ToolChoice ToolChoiceOf(const std::string& choice);

// The value of a message's tool_calls: a list of {"id", "type": "function", "function": {"name",
// "arguments"}}, arguments as a text or an object. INVALID_ARGUMENT: it is none.
absl::Status ReadCalls(const nlohmann::json& list, v1::ChatMessage* message);

// The same list, arguments as texts.
nlohmann::ordered_json CallList(const v1::ChatMessage& message);

// A line for a person: "call call_7hW...: get_weather {"city": "Paris"}".
std::string CallLine(const v1::ToolCall& call);

}  // namespace eta::ctl
