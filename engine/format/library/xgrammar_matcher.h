// xgrammar's matcher as a guide of answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/format/guide/text_matcher.h"
#include "xgrammar/matcher.h"

namespace eta {

// What the matchers of one format share.
struct MatchedGrammar {
  xgrammar::CompiledGrammar grammar;
  int32_t vocabulary_size;
  std::vector<uint32_t> forbidden;  // tokens that may be no part of an answer: as a mask
};

// Following a grammar may take any time, more with each token where it is ambiguous, and steps wait
// for it: an answer that takes more of a CPU than kFreeTime and kTimePerToken give it is followed
// no further. Where that is so, or the library fails, nothing fits any more, and failure() says
// why. std::bad_alloc is thrown.
class XgrammarMatcher final : public TextMatcher {
 public:
  static constexpr std::chrono::milliseconds kFreeTime{250};
  static constexpr std::chrono::milliseconds kTimePerToken{2};

  explicit XgrammarMatcher(std::shared_ptr<const MatchedGrammar> grammar);

  bool Fill(std::span<uint32_t> mask) override;
  bool Accept(int32_t token) override;
  bool AcceptText(std::string_view text) override;
  void Rollback(int32_t count) override;
  bool Complete() const override { return matcher_.IsCompleted(); }
  absl::Status failure() const override;

  // What it has taken of a CPU.
  std::chrono::nanoseconds time() const { return time_; }

 private:
  std::chrono::milliseconds most_time() const { return kFreeTime + tokens_ * kTimePerToken; }
  bool TooSlow() const { return time_ > most_time(); }
  // What `work` returns; false where the library throws, now and later.
  template <typename Work>
  bool Try(const Work& work);

  const std::shared_ptr<const MatchedGrammar> grammar_;
  xgrammar::GrammarMatcher matcher_;
  int64_t tokens_ = 0;  // that were asked for
  std::chrono::nanoseconds time_{0};
  bool broken_ = false;  // the library has failed
};

}  // namespace eta
