// The sentences that needles are, and the questions for them, as texts and as tokens. They are
// those of the magic numbers in RULER (Hsieh et al., "RULER: What's the Real Context Size of Your
// Long-Context Language Models?", COLM 2024).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace eta {

class Tokenizer;

// Ids of a text, without a begin-of-text token in front.
using TokenizeText = std::function<absl::StatusOr<std::vector<int32_t>>(std::string_view)>;
TokenizeText TokenizeBy(const Tokenizer& tokenizer);

struct NamedNumber {
  std::string name;    // "silver harbor"
  std::string number;  // seven digits
};

inline constexpr uint64_t kNeedleNames = 144;

// All are different. REQUIRES: index < kNeedleNames.
std::string NeedleName(uint64_t index);
// REQUIRES: index < kNeedleNumbers.
inline constexpr uint64_t kNeedleNumbers = 9'000'000;
std::string NeedleNumber(uint64_t index);
// Different names, each with a number. `below` draws from [0, limit). REQUIRES: count <=
// kNeedleNames.
std::vector<NamedNumber> DrawNamedNumbers(int count,
                                          const std::function<uint64_t(uint64_t limit)>& below);

// " The special magic number for silver harbor is: 4817362."
std::string NeedleSentence(const NamedNumber& named);
// "\nWhat is the special magic number for ... is:"; the answer follows after a space.
std::string NeedleQuestion(const std::string& name);

struct QuestionTokens {
  std::vector<int32_t> tokens;  // the answer last
  size_t answer = 0;            // where the tokens of both part from those of the question alone
};

// Errors of `tokenize`.
absl::StatusOr<QuestionTokens> TokenizeQuestion(const TokenizeText& tokenize,
                                                const std::string& question,
                                                const std::string& answer);

// The nearest place at or before `place`, at most 64 tokens away, where a sentence or a line of
// `text` has ended; else `place`.
size_t SentenceEnd(const Tokenizer& tokenizer, std::span<const int32_t> text, size_t place);

}  // namespace eta
