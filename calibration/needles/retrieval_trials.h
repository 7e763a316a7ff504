// Retrieval tasks as windows: text with a task's sentences in it, and its first question.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/needles/needle.h"
#include "calibration/needles/retrieval_task.h"

namespace eta {

// Immutable; thread-safe. The tokenizer must outlive it.
class RetrievalTrials {
 public:
  // Windows of at most `length` tokens of `text` and a task.
  RetrievalTrials(std::vector<int32_t> text, const Tokenizer& tokenizer, size_t length,
                  uint64_t seed)
      : text_(std::move(text)), tokenizer_(tokenizer), length_(length), seed_(seed) {}

  // Trial `number` of a kind, whose needles and text depend on the seed alone. InvalidArgument
  // (`context`) for a task that does not fit.
  absl::StatusOr<NeedleWindow> Make(RetrievalKind kind, int32_t number) const;

 private:
  std::vector<int32_t> text_;
  const Tokenizer& tokenizer_;
  size_t length_;
  uint64_t seed_;
};

}  // namespace eta
