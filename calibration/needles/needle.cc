#include "calibration/needles/needle.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eta {
namespace {

void Append(std::vector<int32_t>& tokens, std::span<const int32_t> more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
}

}  // namespace

absl::StatusOr<Needle> SentenceNeedle(const std::string& name, const std::string& number,
                                      const TokenizeText& tokenize) {
  const std::string question =
      absl::StrCat("\nWhat is the special magic number for ", name,
                   " mentioned in the text? The special magic number for ", name, " is:");
  auto statement =
      tokenize(absl::StrCat(" The special magic number for ", name, " is: ", number, "."));
  if (!statement.ok()) return statement.status();
  const auto alone = tokenize(question);
  if (!alone.ok()) return alone.status();
  const auto whole = tokenize(absl::StrCat(question, " ", number));
  if (!whole.ok()) return whole.status();
  const auto part = std::ranges::mismatch(*whole, *alone).in1;
  return Needle{.statement = *std::move(statement),
                .question = {whole->begin(), part},
                .answer = {part, whole->end()}};
}

NeedleWindow MakeNeedleWindow(std::span<const int32_t> text, std::span<const PlacedNeedle> needles,
                              const Needle& asked, int32_t bos_id) {
  NeedleWindow window = {.needles = static_cast<int32_t>(needles.size())};
  if (bos_id >= 0) window.tokens.push_back(bos_id);
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
