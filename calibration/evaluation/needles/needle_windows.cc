#include "calibration/evaluation/needles/needle_windows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/random.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {
namespace {

constexpr const char* kAdjectives[] = {"silver", "quiet",  "crimson", "hollow",
                                       "golden", "narrow", "distant", "frozen",
                                       "gentle", "broken", "amber",   "hidden"};
constexpr const char* kNouns[] = {"harbor", "meadow", "lantern", "bridge", "orchard", "canyon",
                                  "mirror", "anchor", "garden",  "tunnel", "feather", "island"};
constexpr uint64_t kNames = std::size(kAdjectives) * std::size(kNouns);
static_assert(kNames >= kMaxNeedles);

// A needle goes to the end of a sentence, if one ends so many tokens before its place.
constexpr size_t kSentenceReach = 64;

struct Needle {
  std::string name;
  std::string number;  // seven digits
};

// Draws names, each once, and numbers.
class NeedleMaker {
 public:
  explicit NeedleMaker(uint64_t seed) : seed_(seed) {}

  std::vector<Needle> Draw(int32_t count) {
    std::vector<uint64_t> taken;
    std::vector<Needle> needles;
    while (needles.size() < static_cast<size_t>(count)) {
      const uint64_t name = Below(kNames);
      if (std::ranges::find(taken, name) != taken.end()) continue;
      taken.push_back(name);
      needles.push_back({absl::StrCat(kAdjectives[name % std::size(kAdjectives)], " ",
                                      kNouns[name / std::size(kAdjectives)]),
                         absl::StrCat(1000000 + Below(9000000))});
    }
    return needles;
  }
  uint64_t Below(uint64_t limit) {
    return static_cast<uint64_t>(UniformDraw(seed_, next_++) * static_cast<double>(limit));
  }

 private:
  uint64_t seed_;
  uint64_t next_ = 0;
};

class WindowMaker {
 public:
  WindowMaker(std::vector<int32_t> text, const Tokenizer& tokenizer, const NeedleOptions& options)
      : text_(std::move(text)), tokenizer_(tokenizer), options_(options), maker_(options.seed) {}

  absl::StatusOr<NeedleWindow> Next(int32_t index) {
    const std::vector<Needle> needles = maker_.Draw(options_.keys);
    const double step = 1.0 / options_.keys;
    // Where the asked one lies moves from window to window; the others are spread around it.
    const double asked_depth = (index + 0.5) / options_.windows;
    const auto asked = static_cast<size_t>(asked_depth / step);
    std::vector<std::vector<int32_t>> sentences;
    size_t taken = 0;
    for (const Needle& needle : needles) {
      auto sentence = Encode(
          absl::StrCat(" The special magic number for ", needle.name, " is: ", needle.number, "."));
      if (!sentence.ok()) return sentence.status();
      taken += sentence->size();
      sentences.push_back(*std::move(sentence));
    }
    NeedleWindow window;
    std::vector<int32_t> question;
    size_t answer = 0;
    RETURN_IF_ERROR(Question(needles[asked], question, answer));
    taken += question.size() + (tokenizer_.bos_id() >= 0 ? 1 : 0);
    if (taken >= static_cast<size_t>(options_.context)) {
      return InvalidField("context", absl::StrCat("the needles and the question take ", taken));
    }
    const std::vector<int32_t> filler = Filler(static_cast<size_t>(options_.context) - taken);

    if (tokenizer_.bos_id() >= 0) window.tokens.push_back(tokenizer_.bos_id());
    size_t done = 0;
    for (size_t i = 0; i < sentences.size(); ++i) {
      const double depth = i == asked ? asked_depth : (static_cast<double>(i) + 0.5) * step;
      const size_t place = std::max(
          done,
          SentenceEnd(filler, static_cast<size_t>(depth * static_cast<double>(filler.size()))));
      Append(filler, done, place, window.tokens);
      Append(sentences[i], 0, sentences[i].size(), window.tokens);
      if (i == asked)
        window.depth = static_cast<double>(place) / static_cast<double>(filler.size());
      done = place;
    }
    Append(filler, done, filler.size(), window.tokens);
    window.question = static_cast<int32_t>(window.tokens.size());
    window.answer = window.question + static_cast<int32_t>(answer);
    Append(question, 0, question.size(), window.tokens);
    return window;
  }

 private:
  static void Append(const std::vector<int32_t>& from, size_t begin, size_t end,
                     std::vector<int32_t>& to) {
    to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(begin),
              from.begin() + static_cast<std::ptrdiff_t>(end));
  }

  absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text) const {
    return tokenizer_.Encode(text, /*add_bos=*/false);
  }

  // The question with its answer behind it, and where the answer begins: where the tokens of both
  // part from those of the question alone.
  absl::Status Question(const Needle& needle, std::vector<int32_t>& tokens, size_t& answer) const {
    const std::string question =
        absl::StrCat("\nWhat is the special magic number for ", needle.name,
                     " mentioned in the text? The special magic number for ", needle.name, " is:");
    auto whole = Encode(absl::StrCat(question, " ", needle.number));
    if (!whole.ok()) return whole.status();
    const auto alone = Encode(question);
    if (!alone.ok()) return alone.status();
    const auto [part, ignored] = std::ranges::mismatch(*whole, *alone);
    answer = static_cast<size_t>(part - whole->begin());
    tokens = *std::move(whole);
    return absl::OkStatus();
  }

  // The next `count` tokens of the text.
  std::vector<int32_t> Filler(size_t count) {
    std::vector<int32_t> filler;
    while (filler.size() < count) {
      if (at_ == text_.size()) at_ = 0;
      const size_t end = std::min(text_.size(), at_ + count - filler.size());
      Append(text_, at_, end, filler);
      at_ = end;
    }
    return filler;
  }

  // The nearest place at or before `place` where a sentence or a line has ended; else `place`.
  size_t SentenceEnd(const std::vector<int32_t>& filler, size_t place) const {
    for (size_t back = 0; back < std::min(place, kSentenceReach); ++back) {
      const std::string_view piece = tokenizer_.PieceBytes(filler[place - back - 1]);
      if (piece.ends_with('.') || piece.ends_with('\n')) return place - back;
    }
    return place;
  }

  std::vector<int32_t> text_;
  const Tokenizer& tokenizer_;
  NeedleOptions options_;
  NeedleMaker maker_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<NeedleWindow>> MakeNeedleWindows(TextSource& source,
                                                            const Tokenizer& tokenizer,
                                                            const NeedleOptions& options) {
  const auto context = static_cast<size_t>(options.context);
  const size_t wanted = context * static_cast<size_t>(options.windows);
  std::vector<int32_t> text;
  while (text.size() < wanted) {
    const absl::StatusOr<std::optional<std::string>> document = source.Next();
    if (!document.ok()) return document.status();
    if (!document->has_value()) break;
    const absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(**document, false);
    if (!ids.ok()) return ids.status();
    text.insert(text.end(), ids->begin(), ids->end());
    RETURN_IF_ERROR(CheckTextTokens(text.size()));
  }
  if (text.size() < context) {
    return InvalidField("context", absl::StrCat("one window takes ", context,
                                                " tokens, the text holds ", text.size()));
  }
  WindowMaker maker(std::move(text), tokenizer, options);
  std::vector<NeedleWindow> windows;
  for (int32_t i = 0; i < options.windows; ++i) {
    absl::StatusOr<NeedleWindow> window = maker.Next(i);
    if (!window.ok()) return window.status();
    windows.push_back(*std::move(window));
  }
  return windows;
}

}  // namespace eta
