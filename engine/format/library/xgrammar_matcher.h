// xgrammar's matcher as a guide of answers.
#pragma once

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

class XgrammarMatcher final : public TextMatcher {
 public:
  explicit XgrammarMatcher(std::shared_ptr<const MatchedGrammar> grammar);

  // Where the library fails, nothing fits any more.
  bool Fill(std::span<uint32_t> mask) override;
  bool Accept(int32_t token) override;
  bool AcceptText(std::string_view text) override;
  void Rollback(int32_t count) override;
  bool Complete() const override { return matcher_.IsCompleted(); }

 private:
  const std::shared_ptr<const MatchedGrammar> grammar_;
  xgrammar::GrammarMatcher matcher_;
};

}  // namespace eta
