#include "calibration/needles/needle_windows.h"

#include <algorithm>
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

class WindowMaker {
 public:
  WindowMaker(std::span<const int32_t> text, const Tokenizer& tokenizer,
              const NeedleOptions& options)
      : text_(text), tokenizer_(tokenizer), options_(options) {}

  absl::StatusOr<NeedleWindow> Next(int32_t index) {
    ASSIGN_OR_RETURN(const std::vector<Needle> needles, Needles());
    const double step = 1.0 / options_.keys;
    // Where the asked one lies moves from window to window; the others are spread around it.
    const double asked_depth = (index + 0.5) / options_.windows;
    const Needle& asked = needles[static_cast<size_t>(asked_depth / step)];
    ASSIGN_OR_RETURN(const size_t room, RoomBeside(needles, asked));
    const std::vector<int32_t> filler = TextFrom(text_, at_, room);
    at_ = (at_ + room) % text_.size();
    std::vector<PlacedNeedle> placed;
    size_t done = 0;
    for (const Needle& needle : needles) {
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
    const auto below = [this](uint64_t limit) { return Below(limit); };
    for (const NamedNumber& drawn : DrawNamedNumbers(options_.keys, below)) {
      ASSIGN_OR_RETURN(Needle needle, SentenceNeedle(drawn, TokenizeBy(tokenizer_)));
      needles.push_back(std::move(needle));
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

  uint64_t Below(uint64_t limit) {
    return static_cast<uint64_t>(UniformDraw(options_.seed, drawn_++) * static_cast<double>(limit));
  }

  std::span<const int32_t> text_;
  const Tokenizer& tokenizer_;
  NeedleOptions options_;
  size_t at_ = 0;       // where the next window's text begins
  uint64_t drawn_ = 0;  // numbers
};

}  // namespace

absl::StatusOr<std::vector<NeedleWindow>> MakeNeedleWindows(std::span<const int32_t> text,
                                                            const Tokenizer& tokenizer,
                                                            const NeedleOptions& options) {
  const auto context = static_cast<size_t>(options.context);
  if (text.size() < context) {
    return InvalidField("context", absl::StrCat("one window takes ", context,
                                                " tokens, the text holds ", text.size()));
  }
  WindowMaker maker(text, tokenizer, options);
  std::vector<NeedleWindow> windows;
  for (int32_t i = 0; i < options.windows; ++i) {
    ASSIGN_OR_RETURN(NeedleWindow window, maker.Next(i));
    windows.push_back(std::move(window));
  }
  return windows;
}

}  // namespace eta
