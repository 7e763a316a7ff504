// What answers of a model look like: how it calls tools, and between which marks it reasons. Its
// chat template tells (form_probe.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace eta {

enum class CallSyntax : uint8_t {
  kNone,     // the template shows no tools, or writes calls otherwise
  kTagged,   // <tool_call>{"name": N, "arguments": {...}}</tool_call>: Hermes, Qwen
  kBare,     // {"name": N, "parameters": {...}} as the whole answer, "; " between two: Llama 3
  kMistral,  // [TOOL_CALLS][{"name": N, "arguments": {...}}, ...], or [TOOL_CALLS]N[ARGS]{...} each
  kChannel,  // <|channel|>commentary to=functions.N <|constrain|>json<|message|>{...}<|call|>:
             // Harmony
};

// Marks that calls are written with.
inline constexpr char kTagBegin[] = "<tool_call>";
inline constexpr char kTagEnd[] = "</tool_call>";
inline constexpr char kPythonTag[] = "<|python_tag|>";
inline constexpr char kMistralCalls[] = "[TOOL_CALLS]";
inline constexpr char kMistralId[] = "[CALL_ID]";
inline constexpr char kMistralArguments[] = "[ARGS]";

// Those of Harmony, whose answers are messages: <|start|>assistant<|channel|>C<|message|>T<|end|>.
inline constexpr char kMessageStart[] = "<|start|>";
inline constexpr char kMessageChannel[] = "<|channel|>";
inline constexpr char kMessageText[] = "<|message|>";
inline constexpr char kMessageConstrain[] = "<|constrain|>";
inline constexpr char kMessageEnd[] = "<|end|>";
inline constexpr char kMessageCall[] = "<|call|>";
inline constexpr char kMessageReturn[] = "<|return|>";

struct AnswerForm {
  // A mark that is a special token, which has no text.
  struct Mark {
    int32_t id = 0;
    std::string text;
    bool operator==(const Mark&) const = default;
  };

  bool shows_tools = false;  // prompts of chats with tools name them
  CallSyntax calls = CallSyntax::kNone;
  // The call of a tool N with arguments A as the template spells it: begin N middle A end.
  std::string begin;
  std::string middle;
  std::string end;
  bool short_ids = false;       // ids of calls are 9 letters and digits
  bool channels = false;        // answers are messages: Harmony
  std::string reasoning_begin;  // empty: the model does not reason
  std::string reasoning_end;
  std::vector<Mark> marks;  // by id, ascending: those of the above that are special tokens

  bool operator==(const AnswerForm&) const = default;
};

}  // namespace eta
