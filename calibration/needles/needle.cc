#include "calibration/needles/needle.h"

#include <utility>

namespace eta {
namespace {

void Append(std::vector<int32_t>& tokens, std::span<const int32_t> more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
}

}  // namespace

absl::StatusOr<Needle> SentenceNeedle(const NamedNumber& named, const TokenizeText& tokenize) {
  auto statement = tokenize(NeedleSentence(named));
  if (!statement.ok()) return statement.status();
  const absl::StatusOr<QuestionTokens> question =
      TokenizeQuestion(tokenize, NeedleQuestion(named.name), named.number);
  if (!question.ok()) return question.status();
  const auto answer = question->tokens.begin() + static_cast<std::ptrdiff_t>(question->answer);
  return Needle{.statement = *std::move(statement),
                .question = {question->tokens.begin(), answer},
                .answer = {answer, question->tokens.end()}};
}

NeedleWindow MakeNeedleWindow(std::span<const int32_t> text, std::span<const PlacedNeedle> needles,
                              const Needle& asked, std::span<const int32_t> beginning) {
  NeedleWindow window = {.needles = static_cast<int32_t>(needles.size())};
  Append(window.tokens, beginning);
  size_t done = 0;
  for (const PlacedNeedle& placed : needles) {
    Append(window.tokens, text.subspan(done, placed.place - done));
    Append(window.tokens, placed.needle->statement);
    done = placed.place;
    if (placed.needle == &asked) {
      window.depth = static_cast<double>(placed.place) / static_cast<double>(text.size());
    }
  }
  Append(window.tokens, text.subspan(done));
  window.question = static_cast<int32_t>(window.tokens.size());
  Append(window.tokens, asked.question);
  window.answer = static_cast<int32_t>(window.tokens.size());
  Append(window.tokens, asked.answer);
  return window;
}

}  // namespace eta
