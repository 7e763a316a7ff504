#include "calibration/needles/needle.h"

#include <utility>

#include "engine/base/status_macros.h"

namespace eta {
namespace {

void Append(std::vector<int32_t>& tokens, std::span<const int32_t> more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
}

}  // namespace

absl::StatusOr<Needle> SentenceNeedle(const NamedNumber& named, const TokenizeText& tokenize) {
  ASSIGN_OR_RETURN(auto statement, tokenize(NeedleSentence(named)));
  ASSIGN_OR_RETURN(const QuestionTokens question,
                   TokenizeQuestion(tokenize, NeedleQuestion(named.name), named.number));
  Needle needle = QuestionNeedle(question);
  needle.statement = std::move(statement);
  return needle;
}

Needle QuestionNeedle(const QuestionTokens& question) {
  const auto answer = question.tokens.begin() + static_cast<std::ptrdiff_t>(question.answer);
  return {.statement = {},
          .question = {question.tokens.begin(), answer},
          .answer = {answer, question.tokens.end()}};
}

std::vector<int32_t> TextFrom(std::span<const int32_t> text, size_t begin, size_t count) {
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = text[(begin + i) % text.size()];
  return tokens;
}

std::vector<int32_t> HideNeedles(std::span<const int32_t> text,
                                 std::span<const PlacedNeedle> needles) {
  std::vector<int32_t> tokens;
  size_t done = 0;
  for (const PlacedNeedle& placed : needles) {
    Append(tokens, text.subspan(done, placed.place - done));
    Append(tokens, placed.needle->statement);
    done = placed.place;
  }
  Append(tokens, text.subspan(done));
  return tokens;
}

NeedleWindow MakeNeedleWindow(std::span<const int32_t> text, std::span<const PlacedNeedle> needles,
                              const Needle& asked, std::span<const int32_t> beginning) {
  NeedleWindow window = {.needles = static_cast<int32_t>(needles.size())};
  Append(window.tokens, beginning);
  Append(window.tokens, HideNeedles(text, needles));
  for (const PlacedNeedle& placed : needles) {
    if (placed.needle != &asked) continue;
    window.depth = static_cast<double>(placed.place) / static_cast<double>(text.size());
  }
  window.question = static_cast<int32_t>(window.tokens.size());
  Append(window.tokens, asked.question);
  window.answer = static_cast<int32_t>(window.tokens.size());
  Append(window.tokens, asked.answer);
  return window;
}

}  // namespace eta
