// What a chat model is asked: messages, and the text that a model's template makes of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/byte_range.h"

namespace eta {

struct ChatMessage {
  std::string role;                 // "system", "user", "assistant" or "tool"
  std::string content;              // UTF-8; the parts of a message joined in order
  std::optional<std::string> name;  // of the author or of the tool
  std::optional<std::string> tool_call_id;
};

struct Chat {
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = true;  // the text ends where the assistant's answer begins
  std::string variables_json;         // one JSON object of further variables; "" for none
};

struct RenderedChat {
  std::string text;
  // Bytes that the template itself wrote: sorted, disjoint, none empty. What a message or a
  // variable said lies outside, so a control token that it spells stays text.
  std::vector<ByteRange> control;
};

}  // namespace eta
