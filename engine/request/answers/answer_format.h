// What the text of an answer must be: the constraint that a request sets on it. Plain data, no wire
// format; engine/format compiles it into what may follow, token by token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace eta {

enum class AnswerFormatKind : uint8_t {
  kJsonSchema,     // a JSON value that the schema in `source` accepts
  kJsonObject,     // any JSON object
  kRegex,          // a text that the regular expression in `source` matches from end to end
  kGrammar,        // a text of the EBNF grammar in `source`, whose first rule is called root
  kChoice,         // one of `choices`
  kStructuralTag,  // free text with tagged parts that are bound: the JSON of a structural tag
};
inline constexpr int kAnswerFormatKinds = 6;

struct AnswerFormat {
  AnswerFormatKind kind = AnswerFormatKind::kJsonObject;
  std::string source;                // UTF-8
  std::vector<std::string> choices;  // kChoice only: UTF-8, none empty, no two equal
  // How the model's reasoning begins and ends, such as "<think>" and "</think>"; empty: it has
  // none. An answer may begin with such a stretch, which the format does not bind.
  std::string reasoning_begin;
  std::string reasoning_end;
  // Made of a chat's tools (tool_format.h), and as long as these are: the chat's limits bind them.
  bool of_tools = false;

  bool operator==(const AnswerFormat&) const = default;
};

}  // namespace eta
