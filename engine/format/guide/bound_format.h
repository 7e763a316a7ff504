// A compiled format, whatever library matches its text.
#pragma once

#include <memory>
#include <string_view>

#include "engine/format/answer_guide.h"
#include "engine/format/guide/reasoning.h"
#include "engine/format/guide/text_matcher.h"
#include "engine/format/vocabulary.h"

namespace eta {

class BoundFormat final : public CompiledFormat {
 public:
  struct Parts {
    AnswerFormat format;
    std::shared_ptr<const FormatVocabulary> vocabulary;
    MakeMatcher make_matcher;
    // The text alone does not say whether an answer is right: Check looks at no text of it.
    bool by_tokens = false;
    size_t bytes = 0;  // of what `make_matcher` holds
  };
  explicit BoundFormat(Parts parts);

  const AnswerFormat& format() const override { return parts_.format; }
  std::unique_ptr<AnswerGuide> NewGuide(bool in_reasoning) const override;
  // A schema is judged by our own validator and choices by comparison; the other kinds anew by the
  // library, on the text. Whatever that says it must be UTF-8, but for free text beside structural
  // tags. `answer` shows special tokens where the format has markers of reasoning.
  absl::Status Check(std::string_view answer) const override;
  size_t bytes() const override;

 private:
  // What the format binds of `answer`.
  absl::StatusOr<std::string_view> BoundPart(std::string_view answer) const;
  absl::Status Match(std::string_view bound) const;

  const Parts parts_;
  std::shared_ptr<const Reasoning> reasoning_;  // null: the format has none
};

}  // namespace eta
