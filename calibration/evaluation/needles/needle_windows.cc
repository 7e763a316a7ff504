#include "calibration/evaluation/needles/needle_windows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/random.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {
namespace {

static_assert(kNeedleNames >= kMaxNeedles);

// Draws names, each once, and numbers.
class NumberMaker {
 public:
  explicit NumberMaker(uint64_t seed) : seed_(seed) {}

  std::vector<NamedNumber> Draw(int32_t count) {
    std::vector<uint64_t> taken;
    std::vector<NamedNumber> numbers;
    while (numbers.size() < static_cast<size_t>(count)) {
      const uint64_t name = Below(kNeedleNames);
      if (std::ranges::find(taken, name) != taken.end()) continue;
      taken.push_back(name);
      numbers.push_back({NeedleName(name), NeedleNumber(Below(kNeedleNumbers))});
    }
    return numbers;
  }

 private:
  uint64_t Below(uint64_t limit) {
    return static_cast<uint64_t>(UniformDraw(seed_, next_++) * static_cast<double>(limit));
  }

  uint64_t seed_;
  uint64_t next_ = 0;
};

class WindowMaker {
 public:
  WindowMaker(std::vector<int32_t> text, const Tokenizer& tokenizer, const NeedleOptions& options)
      : text_(std::move(text)), tokenizer_(tokenizer), options_(options), numbers_(options.seed) {}

  absl::StatusOr<NeedleWindow> Next(int32_t index) {
    const absl::StatusOr<std::vector<Needle>> needles = Needles();
    if (!needles.ok()) return needles.status();
    const double step = 1.0 / options_.keys;
    // Where the asked one lies moves from window to window; the others are spread around it.
    const double asked_depth = (index + 0.5) / options_.windows;
    const Needle& asked = (*needles)[static_cast<size_t>(asked_depth / step)];
    const absl::StatusOr<size_t> room = RoomBeside(*needles, asked);
    if (!room.ok()) return room.status();
    const std::vector<int32_t> filler = Filler(*room);
    std::vector<PlacedNeedle> placed;
    size_t done = 0;
    for (const Needle& needle : *needles) {
      const double depth =
          &needle == &asked ? asked_depth : (static_cast<double>(placed.size()) + 0.5) * step;
      const auto wanted = static_cast<size_t>(depth * static_cast<double>(filler.size()));
      done = std::max(done, SentenceEnd(tokenizer_, filler, wanted));
      placed.push_back({done, &needle});
    }
    return MakeNeedleWindow(filler, placed, asked, tokenizer_.beginning());
  }

 private:
  absl::StatusOr<std::vector<Needle>> Needles() {
    std::vector<Needle> needles;
    for (const NamedNumber& drawn : numbers_.Draw(options_.keys)) {
      absl::StatusOr<Needle> needle = SentenceNeedle(drawn, TokenizeBy(tokenizer_));
      if (!needle.ok()) return needle.status();
      needles.push_back(*std::move(needle));
    }
    return needles;
  }

  // Tokens of text in a window.
  absl::StatusOr<size_t> RoomBeside(const std::vector<Needle>& needles, const Needle& asked) const {
    size_t taken = asked.question.size() + asked.answer.size();
    for (const Needle& needle : needles) taken += needle.statement.size();
    taken += tokenizer_.beginning().size();
    const auto context = static_cast<size_t>(options_.context);
    if (taken < context) return context - taken;
    return InvalidField("context", absl::StrCat("the needles and the question take ", taken));
  }

  // The next `count` tokens of the text.
  std::vector<int32_t> Filler(size_t count) {
    std::vector<int32_t> filler;
    while (filler.size() < count) {
      if (at_ == text_.size()) at_ = 0;
      const size_t end = std::min(text_.size(), at_ + count - filler.size());
      filler.insert(filler.end(), text_.begin() + static_cast<std::ptrdiff_t>(at_),
                    text_.begin() + static_cast<std::ptrdiff_t>(end));
      at_ = end;
    }
    return filler;
  }

  std::vector<int32_t> text_;
  const Tokenizer& tokenizer_;
  NeedleOptions options_;
  NumberMaker numbers_;
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
    if (!ids.ok()) return source.InDocument(ids.status());
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
