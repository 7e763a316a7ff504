// What is read out of an answer, and how it is to be read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/chat/tools/answer_form.h"

namespace eta {

// The next part of a call.
struct CallDelta {
  int32_t index = 0;  // of the calls that were told
  std::string id;     // with the first part
  std::string name;   // with the first part
  std::string arguments;
  bool withdrawn = false;

  bool operator==(const CallDelta&) const = default;
};

struct AnswerPart {
  std::string text;
  std::string reasoning;
  std::vector<CallDelta> calls;

  bool empty() const { return text.empty() && reasoning.empty() && calls.empty(); }
};

struct AnswerReaderOptions {
  AnswerForm form;
  std::vector<std::string> tools;  // whose calls are looked for; empty: none are
  bool tell_reasoning = true;      // false: it is text, with its marks
  bool in_reasoning = false;       // the prompt has begun it
  uint64_t seed = 0;               // of the ids of calls
  int32_t prompt_tokens = 0;
};

}  // namespace eta
