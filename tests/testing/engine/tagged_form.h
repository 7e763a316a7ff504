// How a model of Qwen's or Hermes's form writes calls and reasoning, without marks of its own.
#pragma once

#include "engine/chat/tools/answer_form.h"

namespace eta::testing {

inline AnswerForm TaggedForm() {
  AnswerForm form;
  form.shows_tools = true;
  form.calls = CallSyntax::kTagged;
  form.begin = "<tool_call>\n{\"name\": \"";
  form.middle = "\", \"arguments\": ";
  form.end = "}\n</tool_call>";
  form.reasoning_begin = "<think>";
  form.reasoning_end = "</think>";
  return form;
}

}  // namespace eta::testing
