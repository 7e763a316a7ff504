// How a model's reasoning begins and ends, seen from the tokens of its vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/format/guide/text_matcher.h"
#include "engine/format/vocabulary.h"

namespace eta {

// Immutable.
class Reasoning {
 public:
  // `end` is not empty. An empty `begin`: the prompt has begun the reasoning. `make_matcher` makes
  // those of what follows it.
  Reasoning(std::string begin, std::string end, std::shared_ptr<const FormatVocabulary> vocabulary,
            const MakeMatcher& make_matcher);

  const std::string& begin() const { return begin_; }
  const FormatVocabulary& vocabulary() const { return *vocabulary_; }

  // Goes on with `bytes` where `matched` bytes of the end marker have been seen. Past the end of it
  // `rest` is what follows, and nothing is matched.
  struct Progress {
    size_t matched = 0;
    bool ended = false;
    std::string_view rest;
  };
  Progress Advance(size_t matched, std::string_view bytes) const;

  // Which tokens may follow `matched` bytes of the end marker, [ceil(V / 32)]: all but those that
  // end an answer, and those that end the reasoning and go on with what the format does not take.
  const std::vector<uint32_t>& Mask(size_t matched) const { return masks_[matched]; }
  // Which tokens go on with the begin marker after `matched` bytes of it.
  const std::vector<int32_t>& Openings(size_t matched) const { return openings_[matched]; }

  size_t bytes() const;

 private:
  static std::vector<size_t> Borders(std::string_view marker);
  // Whether what follows the reasoning may begin with `text`.
  bool Fits(std::string_view text, const MakeMatcher& make_matcher) const;

  const std::string begin_;
  const std::string end_;
  const std::shared_ptr<const FormatVocabulary> vocabulary_;
  const std::vector<size_t> borders_;         // of end_: of each beginning, its longest border
  std::vector<std::vector<uint32_t>> masks_;  // by bytes of end_ that are matched
  std::vector<std::vector<int32_t>> openings_;
};

}  // namespace eta
