#include "calibration/evaluation/text/windows.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/solvers/sample_split.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {

absl::StatusOr<std::vector<std::vector<int32_t>>> ReadWindows(TextSource& source,
                                                              const Tokenizer& tokenizer,
                                                              int32_t context, int32_t max_windows,
                                                              size_t max_tokens) {
  const auto step = static_cast<size_t>(context);
  const auto wanted = static_cast<size_t>(max_windows);
  std::vector<std::vector<int32_t>> windows;
  std::vector<int32_t> pending;  // tokens from the beginning of the next window on
  int64_t total = 0;
  while (wanted == 0 || windows.size() < wanted) {
    ASSIGN_OR_RETURN(const std::optional<std::string> document, source.Next());
    if (!document.has_value()) break;
    const absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(*document, true);
    if (!ids.ok()) return source.InDocument(ids.status());
    pending.insert(pending.end(), ids->begin(), ids->end());
    if (!tokenizer.eos_ids().empty()) pending.push_back(tokenizer.eos_ids().front());
    total += static_cast<int64_t>(ids->size()) + 1;

    size_t begin = 0;
    for (; pending.size() - begin > step && (wanted == 0 || windows.size() < wanted);
         begin += step) {
      const auto first = pending.begin() + static_cast<std::ptrdiff_t>(begin);
      windows.emplace_back(first, first + static_cast<std::ptrdiff_t>(step) + 1);
    }
    const size_t held = windows.size() * (step + 1);
    RETURN_IF_ERROR(CheckTextTokens(held, max_tokens));
    pending.erase(pending.begin(), pending.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  if (windows.empty()) {
    return InvalidField(
        "context", absl::StrCat("one window takes ", step + 1, " tokens, the text holds ", total));
  }
  return windows;
}

absl::StatusOr<std::vector<std::vector<int32_t>>> ReadDocumentWindows(TextSource& source,
                                                                      const Tokenizer& tokenizer,
                                                                      int32_t context,
                                                                      int32_t max_windows,
                                                                      size_t max_tokens) {
  const SplitOptions options = {.sequence_tokens = context + 1,
                                .min_tokens = context + 1,
                                .beginning = tokenizer.beginning()};
  std::vector<std::vector<int32_t>> windows;
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<std::string> document, source.Next());
    if (!document.has_value()) break;
    const absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(*document, true);
    if (!ids.ok()) return source.InDocument(ids.status());
    for (auto& window : CutSamples(std::span(&*ids, 1), options)) {
      windows.push_back(std::move(window));
    }
    const size_t held = windows.size() * static_cast<size_t>(options.sequence_tokens);
    RETURN_IF_ERROR(CheckTextTokens(held, max_tokens));
  }
  if (windows.empty()) {
    return InvalidField("context", absl::StrCat("no document holds ", context + 1, " tokens"));
  }
  return KeepSpread(std::move(windows), max_windows);
}

}  // namespace eta
