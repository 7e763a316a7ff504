// A guide that can also be led by text that is not whole tokens.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "engine/format/answer_guide.h"

namespace eta {

class TextMatcher : public AnswerGuide {
 public:
  // Takes `text`, which Rollback takes back as if it were one token. False: it does not fit, and
  // nothing changed.
  virtual bool AcceptText(std::string_view text) = 0;
};

// A new one, at the beginning of an answer. Any thread.
using MakeMatcher = std::function<std::unique_ptr<TextMatcher>()>;

}  // namespace eta
