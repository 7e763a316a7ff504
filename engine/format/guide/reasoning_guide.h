// The guide of an answer that may begin with reasoning, which its format does not bind.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/format/guide/reasoning.h"
#include "engine/format/guide/text_matcher.h"

namespace eta {

// An answer that begins with the begin marker is reasoning up to the end marker; the format binds
// what follows. An answer that begins otherwise is bound from its beginning. Markers are told by
// their bytes, be they one special token or several others; a token may hold the end of one and
// more.
class ReasoningGuide final : public AnswerGuide {
 public:
  // `in_reasoning`: the begin marker stands in the prompt.
  ReasoningGuide(std::shared_ptr<const Reasoning> reasoning, MakeMatcher make_matcher,
                 bool in_reasoning);

  bool Fill(std::span<uint32_t> mask) override;
  bool Accept(int32_t token) override;
  void Rollback(int32_t count) override;
  bool Complete() const override;
  absl::Status failure() const override;

 private:
  enum class Phase : uint8_t {
    kOpening,    // it may be the begin marker, or the format, or both
    kBound,      // no reasoning: `direct_` is all of it
    kReasoning,  // no answer yet
    kAnswer,     // `after_` is what follows
  };
  struct State {
    Phase phase = Phase::kOpening;
    size_t matched = 0;  // of the begin marker, or of the end marker
    bool direct = true;  // the format takes all tokens so far
  };
  struct Step {
    State before;
    bool direct = false;  // `direct_` took the token
    bool after = false;   // `after_` took it, or a part of it
  };

  bool Open(int32_t token, Step& step);
  // The reasoning goes on with `bytes`. False: they end it, and the format does not take the rest.
  bool Reason(std::string_view bytes, Step& step);

  const std::shared_ptr<const Reasoning> reasoning_;
  const std::unique_ptr<TextMatcher> direct_;
  const std::unique_ptr<TextMatcher> after_;
  State state_;
  std::vector<Step> steps_;
};

}  // namespace eta
