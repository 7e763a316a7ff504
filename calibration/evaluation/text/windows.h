// A corpus as token windows for teacher-forced evaluation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/evaluation/text/text_source.h"

namespace eta {

class Tokenizer;

// Concatenates the documents, each as its tokens between begin- and end-of-text, and cuts them into
// windows of `context` predictions. A window is context + 1 tokens and begins with the last token
// of the one before. At most `max_windows` are made (0: all), and nothing is read beyond them.
// Tokens that do not fill a window are dropped. InvalidArgument for a text that fills no window,
// and for one of which more than `max_tokens` tokens would be held.
absl::StatusOr<std::vector<std::vector<int32_t>>> ReadWindows(TextSource& source,
                                                              const Tokenizer& tokenizer,
                                                              int32_t context, int32_t max_windows,
                                                              size_t max_tokens = kMaxTextTokens);

// Cuts windows as calibration cuts sequences (sample_split.h): every window lies in one document
// and begins with the begin-of-text token. Returns at most `max_windows` (0: all), evenly spaced
// over the text; all windows are held until then. InvalidArgument if no document fills a window,
// and if the windows have more than `max_tokens` tokens.
absl::StatusOr<std::vector<std::vector<int32_t>>> ReadDocumentWindows(
    TextSource& source, const Tokenizer& tokenizer, int32_t context, int32_t max_windows,
    size_t max_tokens = kMaxTextTokens);

}  // namespace eta
