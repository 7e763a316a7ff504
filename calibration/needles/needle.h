// A needle hidden in text, and the window that hides it and asks for it. Of a model that reads
// text, needles are sentences that name a number, as in RULER (Hsieh et al., "RULER: What's the
// Real Context Size of Your Long-Context Language Models?", COLM 2024).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/needles/needle_text.h"

namespace eta {

// In tokens.
struct Needle {
  std::vector<int32_t> statement;
  std::vector<int32_t> question;
  std::vector<int32_t> answer;
};

// A needle that stands in front of token `place` of the text.
struct PlacedNeedle {
  size_t place = 0;
  const Needle* needle = nullptr;
};

struct NeedleWindow {
  std::vector<int32_t> tokens;  // the question and the answer last
  int32_t question = 0;         // its first token
  int32_t answer = 0;           // its first token
  int32_t needles = 1;          // of which one is asked for
  double depth = 0.0;           // of that one, in the text around it: 0..1
};

// The sentence that gives a name its number, and the question for it. The answer begins where the
// tokens of both part from those of the question alone: either may be empty, if the tokenizer has
// it so.
absl::StatusOr<Needle> SentenceNeedle(const NamedNumber& named, const TokenizeText& tokenize);
// A question as a needle that no sentence states.
Needle QuestionNeedle(const QuestionTokens& question);

// `count` tokens of `text` from `begin` on, which goes on at its front behind its end. REQUIRES:
// it has one.
std::vector<int32_t> TextFrom(std::span<const int32_t> text, size_t begin, size_t count);

// `text` with the needles in it, in the order of their places.
std::vector<int32_t> HideNeedles(std::span<const int32_t> text,
                                 std::span<const PlacedNeedle> needles);

// `beginning`, the text with the needles in it, then the question for `asked` and its answer. If
// that is not one of them, the depth stays 0.
NeedleWindow MakeNeedleWindow(std::span<const int32_t> text, std::span<const PlacedNeedle> needles,
                              const Needle& asked, std::span<const int32_t> beginning);

}  // namespace eta
