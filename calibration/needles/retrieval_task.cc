#include "calibration/needles/retrieval_task.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/needles/needle_text.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr int kMostQuestions = 4;
constexpr int kVariableLetters = 3;

// From `low` to `high`.
int Between(int low, int high, Draws& draws) {
  return low + static_cast<int>(draws.Below(static_cast<uint64_t>(high - low) + 1));
}

RetrievalTask Keys(int count, Draws& draws) {
  RetrievalTask task;
  std::vector<NamedNumber> needles =
      DrawNamedNumbers(count, [&draws](uint64_t limit) { return draws.Below(limit); });
  for (const NamedNumber& needle : needles) task.sentences.push_back(NeedleSentence(needle));
  Shuffle(needles, draws);
  needles.resize(static_cast<size_t>(std::min(count, kMostQuestions)));
  for (const NamedNumber& needle : needles) {
    task.questions.push_back({NeedleQuestion(needle.name), needle.number});
  }
  return task;
}

RetrievalTask Values(Draws& draws) {
  const std::string name = NeedleName(draws.Below(kNeedleNames));
  const std::string first = NeedleNumber(draws.Below(kNeedleNumbers));
  const std::string second = NeedleNumber(draws.Below(kNeedleNumbers));
  return {.sentences = {absl::StrCat(" The first magic number for ", name, " is: ", first, "."),
                        absl::StrCat(" The second magic number for ", name, " is: ", second, ".")},
          .questions = {{absl::StrCat(" What are the first and second magic numbers for ", name,
                                      " mentioned in the text? They are:"),
                         absl::StrCat(first, " and ", second)}}};
}

std::string DrawVariable(Draws& draws) {
  std::string name = "VAR ";
  for (int i = 0; i < kVariableLetters; ++i) name += static_cast<char>('A' + draws.Below(26));
  return name;
}

// Different ones.
std::vector<std::string> DrawVariables(size_t count, Draws& draws) {
  std::vector<std::string> names;
  while (names.size() < count) {
    std::string name = DrawVariable(draws);
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

RetrievalTask Hops(Draws& draws) {
  RetrievalTask task;
  const std::vector<std::string> names = DrawVariables(4, draws);
  for (size_t pair = 0; pair < 4; pair += 2) {
    const std::string value = absl::StrCat(10'000 + draws.Below(90'000));
    task.sentences.push_back(absl::StrCat(" ", names[pair], " = ", value, "."));
    task.sentences.push_back(absl::StrCat(" ", names[pair + 1], " = ", names[pair], "."));
    task.questions.push_back(
        {absl::StrCat(" What is the value of ", names[pair + 1], "? ", names[pair + 1], " ="),
         absl::StrCat(names[pair], " = ", value)});
  }
  Shuffle(task.sentences, draws);
  task.questions.erase(task.questions.begin() + static_cast<std::ptrdiff_t>(draws.Below(2)));
  return task;
}

}  // namespace

RetrievalTask MakeRetrievalTask(RetrievalKind kind, int most_keys, Draws& draws) {
  switch (kind) {
    case RetrievalKind::kMultiKey:
      return Keys(Between(2, most_keys, draws), draws);
    case RetrievalKind::kMultiValue:
      return Values(draws);
    case RetrievalKind::kTwoHop:
      return Hops(draws);
    case RetrievalKind::kSingle:
      break;
  }
  return Keys(1, draws);
}

absl::StatusOr<TaskTokens> TokenizeTask(const RetrievalTask& task, const Tokenizer& tokenizer) {
  TaskTokens tokens;
  const TokenizeText tokenize = TokenizeBy(tokenizer);
  for (const std::string& sentence : task.sentences) {
    ASSIGN_OR_RETURN(auto statement, tokenize(sentence));
    tokens.count += statement.size();
    tokens.needles.push_back({.statement = std::move(statement), .question = {}, .answer = {}});
  }
  for (const RetrievalQuestion& asked : task.questions) {
    ASSIGN_OR_RETURN(auto question, TokenizeQuestion(tokenize, asked.question, asked.answer));
    tokens.count += question.tokens.size();
    tokens.questions.push_back(std::move(question));
  }
  return tokens;
}

std::vector<PlacedNeedle> PlaceNeedles(std::span<const Needle> needles,
                                       std::span<const int32_t> text, const Tokenizer& tokenizer,
                                       Draws& draws) {
  std::vector<size_t> places;
  for (size_t i = 0; i < needles.size(); ++i) {
    places.push_back(
        SentenceEnd(tokenizer, text, static_cast<size_t>(draws.Below(text.size() + 1))));
  }
  std::ranges::sort(places);
  std::vector<PlacedNeedle> placed;
  for (size_t i = 0; i < needles.size(); ++i) placed.push_back({places[i], &needles[i]});
  return placed;
}

}  // namespace eta
