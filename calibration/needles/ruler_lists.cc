// Common words and frequent words (RULER, section 3.3): what a long list has most of.

#include <algorithm>
#include <numbers>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "calibration/needles/ruler_form.h"
#include "calibration/needles/ruler_words.h"

namespace eta {
namespace {

constexpr size_t kCommonWords = 10;
constexpr int32_t kCommonOutput = 120;
constexpr size_t kLeastOthers = 10;

// How often a list has its words.
struct WordCounts {
  size_t common = 0;
  size_t other = 0;
};
// RULER's, of an example that stands in front, and of the question.
struct CommonWordsSize {
  size_t example_others = 0;  // different words
  WordCounts example;
  WordCounts question;
};
constexpr int32_t kShortList = 4096;  // tokens, from which on a list is a long one
constexpr CommonWordsSize kShortSize = {10, {3, 1}, {6, 1}};
constexpr CommonWordsSize kLongSize = {30, {10, 3}, {30, 3}};

constexpr int kCodedLetters = 6;
constexpr size_t kMostFrequent = 3;
constexpr int32_t kFrequentOutput = 50;
// From so many words on the third of the coded words comes more often than the fourth.
constexpr size_t kLeastCoded = 74;

std::string AskForCommon(const std::vector<std::string>& common,
                         const std::vector<std::string>& others, const WordCounts& counts,
                         Draws draws) {
  std::vector<absl::string_view> words;
  for (size_t i = 0; i < counts.common; ++i)
    words.insert(words.end(), common.begin(), common.end());
  for (size_t i = 0; i < counts.other; ++i) words.insert(words.end(), others.begin(), others.end());
  Shuffle(words, draws);
  std::string text =
      "Below is a numbered list of words. In these words, some appear more often than others. "
      "Memorize the ones that appear most often.";
  for (size_t i = 0; i < words.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "\n" : " ", i + 1, ". ", words[i]);
  }
  absl::StrAppend(&text,
                  "\nQuestion: What are the 10 most common words in the above list? Answer: The "
                  "top 10 words that appear most often in the list are:");
  return text;
}

// `count` words. None is part of one of `apart`, nor the other way round: the answer would seem
// to hold it.
void AddWords(size_t count, const std::vector<std::string>& apart, WordDraws& draws,
              std::vector<std::string>& words) {
  for (const size_t end = words.size() + count; words.size() < end;) {
    std::string word = draws.Next();
    const auto overlaps = [&word](const std::string& other) {
      return absl::StrContains(word, other) || absl::StrContains(other, word);
    };
    if (std::ranges::none_of(apart, overlaps)) words.push_back(std::move(word));
  }
}

// Of the word of a rank, if there are `words` of all ranks: a zeta distribution, alpha 2.
size_t CopiesOfRank(size_t rank, size_t words) {
  constexpr double kZetaOf2 = std::numbers::pi * std::numbers::pi / 6.0;
  const auto squared = static_cast<double>(rank * rank);
  return static_cast<size_t>(static_cast<double>(words) / (kZetaOf2 * squared));
}

}  // namespace

RulerForm CommonWordsForm(RulerSource source) {
  const CommonWordsSize& size = source.length < kShortList ? kShortSize : kLongSize;
  WordDraws draws(source.text.words, source.question);
  std::vector<std::string> common;
  while (common.size() < kCommonWords) AddWords(1, common, draws, common);
  std::vector<std::string> example_common;
  std::vector<std::string> example_others;
  AddWords(kCommonWords, common, draws, example_common);
  AddWords(size.example_others, common, draws, example_others);
  std::string beginning =
      AskForCommon(example_common, example_others, size.example, source.question);
  for (size_t i = 0; i < kCommonWords; ++i) {
    absl::StrAppend(&beginning, " ", i + 1, ". ", example_common[i]);
  }
  return {.prompt =
              [=, others = std::vector<std::string>()](size_t units) mutable {
                if (others.size() < units) AddWords(units - others.size(), common, draws, others);
                const std::vector<std::string> some(
                    others.begin(), others.begin() + static_cast<std::ptrdiff_t>(units));
                return absl::StrCat(beginning, "\n",
                                    AskForCommon(common, some, size.question, source.units));
              },
          .least_units = kLeastOthers,
          .answers = common,
          .max_tokens = kCommonOutput};
}

RulerForm FrequentWordsForm(RulerSource source) {
  std::vector<std::string> ranked = {"..."};  // noise has the first rank
  const auto add = [](std::vector<std::string>& words, Draws& draws) {
    words.push_back(DrawAnother(words, [&] { return DrawLetters(kCodedLetters, 'a', draws); }));
  };
  while (ranked.size() <= kMostFrequent) add(ranked, source.question);
  const std::vector<std::string> answers(ranked.begin() + 1, ranked.end());
  return {.prompt =
              [=, draws = source.question](size_t units) mutable {
                std::vector<absl::string_view> words;
                for (size_t rank = 1; CopiesOfRank(rank, units) > 0; ++rank) {
                  if (ranked.size() < rank) add(ranked, draws);
                }
                for (size_t rank = 1; rank <= ranked.size(); ++rank) {
                  words.insert(words.end(), CopiesOfRank(rank, units), ranked[rank - 1]);
                }
                Draws order = source.units;
                Shuffle(words, order);
                return absl::StrCat(
                    "Read the following coded text and track the frequency of each coded word. "
                    "Find the three most frequently appeared coded words. ",
                    absl::StrJoin(words, " "),
                    "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. "
                    "What are the three most frequently appeared words in the above coded text? "
                    "Answer: According to the coded text above, the three most frequently "
                    "appeared words are:");
              },
          .least_units = kLeastCoded,
          .answers = answers,
          .max_tokens = kFrequentOutput};
}

}  // namespace eta
