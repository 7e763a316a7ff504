#include "calibration/needles/needle_text.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {
namespace {

constexpr const char* kAdjectives[] = {"silver", "quiet",  "crimson", "hollow",
                                       "golden", "narrow", "distant", "frozen",
                                       "gentle", "broken", "amber",   "hidden"};
constexpr const char* kNouns[] = {"harbor", "meadow", "lantern", "bridge", "orchard", "canyon",
                                  "mirror", "anchor", "garden",  "tunnel", "feather", "island"};
static_assert(kNeedleNames == std::size(kAdjectives) * std::size(kNouns));

constexpr size_t kSentenceReach = 64;

}  // namespace

TokenizeText TokenizeBy(const Tokenizer& tokenizer) {
  return [&tokenizer](std::string_view text) { return tokenizer.Encode(text, /*add_bos=*/false); };
}

std::string NeedleName(uint64_t index) {
  return absl::StrCat(kAdjectives[index % std::size(kAdjectives)], " ",
                      kNouns[index / std::size(kAdjectives)]);
}

std::string NeedleNumber(uint64_t index) {
  return absl::StrCat(1'000'000 + index);
}

std::vector<NamedNumber> DrawNamedNumbers(int count,
                                          const std::function<uint64_t(uint64_t limit)>& below) {
  std::vector<uint64_t> taken;
  std::vector<NamedNumber> numbers;
  while (numbers.size() < static_cast<size_t>(count)) {
    const uint64_t name = below(kNeedleNames);
    if (std::ranges::find(taken, name) != taken.end()) continue;
    taken.push_back(name);
    numbers.push_back({NeedleName(name), NeedleNumber(below(kNeedleNumbers))});
  }
  return numbers;
}

std::string NeedleSentence(const NamedNumber& named) {
  return absl::StrCat(" The special magic number for ", named.name, " is: ", named.number, ".");
}

std::string NeedleQuestion(const std::string& name) {
  return absl::StrCat("\nWhat is the special magic number for ", name,
                      " mentioned in the text? The special magic number for ", name, " is:");
}

absl::StatusOr<QuestionTokens> TokenizeQuestion(const TokenizeText& tokenize,
                                                const std::string& question,
                                                const std::string& answer) {
  ASSIGN_OR_RETURN(auto whole, tokenize(absl::StrCat(question, " ", answer)));
  ASSIGN_OR_RETURN(const auto alone, tokenize(question));
  const auto [part, ignored] = std::ranges::mismatch(whole, alone);
  const auto at = static_cast<size_t>(part - whole.begin());
  return QuestionTokens{.tokens = std::move(whole), .answer = at};
}

size_t SentenceEnd(const Tokenizer& tokenizer, std::span<const int32_t> text, size_t place) {
  for (size_t back = 0; back < std::min(place, kSentenceReach); ++back) {
    const std::string_view piece = tokenizer.PieceBytes(text[place - back - 1]);
    if (piece.ends_with('.') || piece.ends_with('\n')) return place - back;
  }
  return place;
}

}  // namespace eta
