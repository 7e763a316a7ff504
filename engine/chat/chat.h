// What a chat model is asked: messages, and the text that a model's template makes of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/byte_range.h"

namespace eta {

inline constexpr size_t kMaxTools = 128;      // of a chat
inline constexpr size_t kMaxToolCalls = 128;  // of a message
inline constexpr size_t kMaxToolNameBytes = 64;

inline bool IsToolNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

// A call that a model asked for.
struct ToolCall {
  std::string id;  // empty: it has none
  std::string name;
  std::string arguments_json;  // one JSON object

  bool operator==(const ToolCall&) const = default;
};

struct ChatMessage {
  std::string role;                 // "system", "user", "assistant" or "tool"
  std::string content;              // UTF-8; the parts of a message joined in order
  std::optional<std::string> name;  // of the author or of the tool
  std::optional<std::string> tool_call_id;
  std::vector<ToolCall> tool_calls;  // of an assistant
  // An assistant's content as the tokens that the model wrote; absent: it is `content`.
  std::optional<std::vector<int32_t>> token_ids;
  std::optional<std::string> reasoning;  // of an assistant, before the content
};

// A function that the model may call.
struct Tool {
  std::string name;
  std::optional<std::string> description;
  std::string parameters_json;  // a JSON Schema of an object; "" for one without properties
  bool strict = false;          // arguments are what it accepts
};

// The schema of a tool that names no parameters.
inline constexpr char kNoParameters[] = R"({"type":"object","properties":{}})";

enum class ToolChoice : uint8_t {
  kAuto,
  kNone,      // tools are shown, calls stay text
  kRequired,  // the answer is calls
};

struct Chat {
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = true;  // the text ends where the assistant's answer begins
  std::string variables_json;         // one JSON object of further variables; "" for none
  std::vector<Tool> tools;
  std::optional<ToolChoice> tool_choice;    // absent: kAuto
  std::optional<std::string> tool_to_call;  // the answer is calls of this one
};

// Where a message that is token ids stands in a rendered text.
struct TokenTurn {
  ByteRange range;  // of bytes that stand for the ids
  size_t message = 0;
};

struct RenderedChat {
  std::string text;
  // Bytes that the template itself wrote: sorted, disjoint, none empty. What a message, a tool or a
  // variable said lies outside, so a control token that it spells stays text.
  std::vector<ByteRange> control;
  std::vector<TokenTurn> turns;  // in their order; each lies in `control`
};

}  // namespace eta
