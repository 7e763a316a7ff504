// Windows of text that hide numbers among other sentences and ask for one of them, for models that
// read text (calibration/needles/needle.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/needles/needle.h"

namespace eta {

class Tokenizer;

struct NeedleOptions {
  int32_t context = 0;   // tokens of a window
  int32_t windows = 12;  // their needles lie at depths evenly spread
  int32_t keys = 1;      // needles per window, of which one is asked for
  uint64_t seed = 1;     // of names and numbers
};

inline constexpr int32_t kMaxNeedles = 64;  // per window

// A window takes up the text where the one before ended, and from the beginning again where it is
// at its end. The same text, tokenizer and options give the same windows. InvalidArgument for a
// context that the needles and the question do not fit in, and for a text of fewer tokens than a
// window.
absl::StatusOr<std::vector<NeedleWindow>> MakeNeedleWindows(std::span<const int32_t> text,
                                                            const Tokenizer& tokenizer,
                                                            const NeedleOptions& options);

}  // namespace eta
