#include "calibration/calibrate/retrieval_windows.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/random.h"

namespace eta {
namespace {

using Tokens = std::vector<int32_t>;

constexpr uint64_t kSeed = 0x6e6565646c65;  // any; fixed, so that profiles can be made again
constexpr int kWindows = 2 * kRetrievalDepths;
constexpr const char* kAdjectives[] = {"silver", "quiet",  "golden", "narrow",
                                       "gentle", "broken", "hidden", "distant"};
constexpr const char* kNouns[] = {"harbor", "meadow", "bridge", "garden",
                                  "mirror", "island", "tunnel", "canyon"};

using Needles = std::vector<Needle>;  // of a window; the first is asked for

int NeedlesOf(int window) {
  return window < kRetrievalDepths ? 1 : kNeedlesPerText;
}

void Append(Tokens& tokens, const Tokens& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
}

// Draws items without giving one twice.
template <typename Item>
class Deck {
 public:
  Deck(std::vector<Item> items, uint64_t seed) : items_(std::move(items)), seed_(seed) {}

  Item Draw() {
    const auto left = static_cast<double>(items_.size() - next_);
    const auto chosen = next_ + static_cast<size_t>(UniformDraw(seed_, next_) * left);
    std::swap(items_[next_], items_[chosen]);
    return items_[next_++];
  }
  std::vector<Item> Draw(int count) {
    std::vector<Item> drawn;
    for (int i = 0; i < count; ++i) drawn.push_back(Draw());
    return drawn;
  }

 private:
  std::vector<Item> items_;
  const uint64_t seed_;
  size_t next_ = 0;
};

// The ids without the commonest tenth and the rarest half, if enough are left.
Tokens UsableIds(std::span<const Tokens> text, std::span<const Tokens> vocabulary,
                 const RetrievalOptions& options) {
  std::map<int32_t, int64_t> counts;
  for (const auto& sequences : {text, vocabulary}) {
    for (const Tokens& sequence : sequences) {
      for (const int32_t id : sequence) ++counts[id];
    }
  }
  for (const auto& ids : {options.beginning, options.reserved_ids}) {
    for (const int32_t id : ids) counts.erase(id);
  }
  std::vector<std::pair<int64_t, int32_t>> ranked;
  for (const auto& [id, count] : counts) ranked.emplace_back(-count, id);
  std::sort(ranked.begin(), ranked.end());
  Tokens ids;
  for (const auto& [count, id] : ranked) ids.push_back(id);
  const size_t first = ids.size() / 10;
  const size_t last = ids.size() / 2;
  if (last - first < 2 * kNeedleIds) return ids;
  return {ids.begin() + static_cast<std::ptrdiff_t>(first),
          ids.begin() + static_cast<std::ptrdiff_t>(last)};
}

// Needles of ids for all windows; empty where there are too few ids.
std::vector<Needles> NeedlesOfIds(const Tokens& ids) {
  std::vector<Needles> windows;
  if (ids.size() < kNeedleIds) return windows;
  for (int w = 0; w < kWindows; ++w) {
    Deck<int32_t> deck(ids, kSeed + static_cast<uint64_t>(w));
    const Tokens marker = deck.Draw(kMarkerTokens);
    Needles& needles = windows.emplace_back();
    for (int i = 0; i < NeedlesOf(w); ++i) {
      Needle& needle = needles.emplace_back();
      needle.question = marker;
      Append(needle.question, deck.Draw(kKeyTokens));
      needle.answer = deck.Draw(kValueTokens);
      needle.statement = needle.question;
      Append(needle.statement, needle.answer);
    }
  }
  return windows;
}

// Needles of sentences for all windows; empty where the model reads no text.
std::vector<Needles> NeedlesOfSentences(const RetrievalOptions& options) {
  std::vector<Needles> windows;
  if (!options.tokenize) return windows;
  const TokenizeText tokenize = [&options](std::string_view text) {
    absl::StatusOr<Tokens> ids = options.tokenize(text);
    const Tokens& beginning = options.beginning;
    if (ids.ok() && ids->size() >= beginning.size() &&
        std::equal(beginning.begin(), beginning.end(), ids->begin())) {
      ids->erase(ids->begin(), ids->begin() + static_cast<std::ptrdiff_t>(beginning.size()));
    }
    return ids;
  };
  std::vector<std::string> names;
  for (const char* adjective : kAdjectives) {
    for (const char* noun : kNouns) names.push_back(absl::StrCat(adjective, " ", noun));
  }
  for (int w = 0; w < kWindows; ++w) {
    const uint64_t seed = kSeed + static_cast<uint64_t>(w);
    Deck<std::string> deck(names, seed);
    Needles& needles = windows.emplace_back();
    for (int i = 0; i < NeedlesOf(w); ++i) {
      const double draw = UniformDraw(~seed, static_cast<uint64_t>(i));
      const int number = 1'000'000 + static_cast<int>(9e6 * draw);  // seven digits
      absl::StatusOr<Needle> needle = SentenceNeedle({deck.Draw(), absl::StrCat(number)}, tokenize);
      if (!needle.ok() || needle->question.empty() || needle->answer.empty()) return {};
      needles.push_back(*std::move(needle));
    }
  }
  return windows;
}

// Tokens of text in a window with these needles; at least half of it, and no more than there are,
// or they do not fit.
int32_t FillerOf(const Needles& needles, const RetrievalOptions& options) {
  size_t taken = options.beginning.size();
  taken += needles.front().question.size() + needles.front().answer.size();
  for (const Needle& needle : needles) taken += needle.statement.size();
  return static_cast<int32_t>(options.window_tokens - static_cast<int64_t>(taken));
}

bool Fit(const std::vector<Needles>& windows, size_t text_tokens, const RetrievalOptions& options) {
  return !windows.empty() && std::all_of(windows.begin(), windows.end(), [&](const auto& needles) {
    const int64_t filler = FillerOf(needles, options);
    return 2 * filler >= options.window_tokens && filler <= static_cast<int64_t>(text_tokens);
  });
}

// Needles stand at even distances. The one that is asked for stands at (place + 1/2) /
// kRetrievalDepths of the text, the others where other windows have theirs.
NeedleWindow MakeWindow(const Tokens& text, size_t text_from, const Needles& needles, int place,
                        const RetrievalOptions& options) {
  const Tokens filler = TextFrom(text, text_from, static_cast<size_t>(FillerOf(needles, options)));
  const auto count = static_cast<int>(needles.size());
  std::vector<PlacedNeedle> placed;
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>((place + i * kRetrievalDepths / count) % kRetrievalDepths);
    placed.push_back(
        {filler.size() * (2 * at + 1) / (2 * kRetrievalDepths), &needles[static_cast<size_t>(i)]});
  }
  std::ranges::stable_sort(placed, {}, &PlacedNeedle::place);
  return MakeNeedleWindow(filler, placed, needles.front(), options.beginning);
}

}  // namespace

std::vector<NeedleWindow> MakeRetrievalWindows(std::span<const Tokens> text,
                                               std::span<const Tokens> vocabulary,
                                               const RetrievalOptions& options) {
  Tokens running;
  for (const Tokens& sequence : text) {
    std::copy_if(sequence.begin(), sequence.end(), std::back_inserter(running),
                 [&options](int32_t id) { return std::ranges::count(options.beginning, id) == 0; });
  }
  std::vector<Needles> needles = NeedlesOfSentences(options);
  if (!Fit(needles, running.size(), options)) {
    needles = NeedlesOfIds(UsableIds(text, vocabulary, options));
  }
  std::vector<NeedleWindow> windows;
  if (!Fit(needles, running.size(), options)) return windows;
  for (size_t w = 0; w < needles.size(); ++w) {
    windows.push_back(MakeWindow(running, w * running.size() / needles.size(), needles[w],
                                 static_cast<int>(w) % kRetrievalDepths, options));
  }
  return windows;
}

}  // namespace eta
