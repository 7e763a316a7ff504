// A corpus as token windows for teacher-forced evaluation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/evaluation/text/text_source.h"

namespace eta {

class Tokenizer;

// Documents one after the other, each as its tokens between begin- and end-of-text, cut into
// windows of `context` predictions: context + 1 tokens, the next window beginning at the last token
// of the one before. At most `max_windows` (0: all), and no further than needed is read. What does
// not fill a window is left out. InvalidArgument for a text that fills none, and for one of which
// more than `max_tokens` would be held.
absl::StatusOr<std::vector<std::vector<int32_t>>> ReadWindows(TextSource& source,
                                                              const Tokenizer& tokenizer,
                                                              int32_t context, int32_t max_windows,
                                                              size_t max_tokens = kMaxTextTokens);

// As calibration's sequences (sample_split.h): every window lies in one document and begins with
// the begin-of-text token. At most `max_windows` (0: all), evenly spaced over the text, all of
// whose windows are held until then. InvalidArgument for a text none of whose documents fills one,
// and for one whose windows have more than `max_tokens`.
absl::StatusOr<std::vector<std::vector<int32_t>>> ReadDocumentWindows(
    TextSource& source, const Tokenizer& tokenizer, int32_t context, int32_t max_windows,
    size_t max_tokens = kMaxTextTokens);

}  // namespace eta
