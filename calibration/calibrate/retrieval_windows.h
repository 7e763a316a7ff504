// Windows of text with needles in them, for measuring whether a way to attend still finds what full
// attention finds.
//
// The window ends with a question and its answer, which a model foretells if it attends to the
// needle. For a model that reads text, needles are sentences (calibration/needles/needle.h). For
// any other model they are a key and a value of token ids, and the question is the key once more:
// the answer copies what came after it. These ids are some that the text itself uses, neither its
// commonest nor, where there are enough, its rarest; a window has none of them in two places of its
// needles. All keys begin with one marker, so that up to its own key a question looks like every
// needle of its window.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibration/needles/needle.h"

namespace eta {

inline constexpr int kRetrievalDepths = 6;  // windows of each kind
inline constexpr int kNeedlesPerText = 4;   // of a window with several needles
// Of needles that are made of ids.
inline constexpr int kMarkerTokens = 4;
inline constexpr int kKeyTokens = 4;
inline constexpr int kValueTokens = 4;
inline constexpr int kIdNeedleTokens = kMarkerTokens + kKeyTokens + kValueTokens;
// The fewest different ids that needles are made of.
inline constexpr int kNeedleIds = kMarkerTokens + kNeedlesPerText * (kKeyTokens + kValueTokens);

struct RetrievalOptions {
  int32_t window_tokens = 0;            // of every window
  std::vector<int32_t> beginning{};     // is put in front of every window
  std::vector<int32_t> reserved_ids{};  // no needle is made of these
  // May put `beginning` in front. Empty, or an error: needles are made of ids.
  TokenizeText tokenize{};
};

// kRetrievalDepths windows with one needle, then as many with kNeedlesPerText, asked for at depths
// from near the beginning to near the end of the text. The text around them is `text`, from as many
// places; ids come from `text` and `vocabulary`. The same arguments give the same windows. Empty
// where the text is shorter than a window, since it is not repeated to fill one; where windows are
// so short that they would be mostly needles (LeastWindowTokens); or where there are fewer than
// kNeedleIds ids to make needles of.
std::vector<NeedleWindow> MakeRetrievalWindows(std::span<const std::vector<int32_t>> text,
                                               std::span<const std::vector<int32_t>> vocabulary,
                                               const RetrievalOptions& options);

// The shortest window that needles of ids can be hidden in, behind so many tokens of a beginning.
constexpr int32_t LeastWindowTokens(int32_t beginning) {
  return 2 * ((kNeedlesPerText + 1) * kIdNeedleTokens + beginning);
}

}  // namespace eta
