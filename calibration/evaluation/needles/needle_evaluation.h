// Measures what a model retrieves under several ways of attending: hits over the same windows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/rivals/rival_backend.h"
#include "calibration/evaluation/runtime/runner.h"
#include "calibration/evaluation/text/text_source.h"
#include "calibration/needles/needle_windows.h"

namespace eta {

// MakeNeedleWindows over the text's documents, one after the other. InvalidArgument as it says, and
// for more tokens than kMaxTextTokens.
absl::StatusOr<std::vector<NeedleWindow>> ReadNeedleWindows(TextSource& source,
                                                            const Tokenizer& tokenizer,
                                                            const NeedleOptions& options);

struct NeedleEvaluationOptions {
  // Rows of a window that are fed as a prompt; the later ones select blocks. 0: all before the
  // question.
  int32_t prefill = 0;
  std::span<const int32_t> special_ids = {};  // ascending; may be tempered
  // The backend that runners run through. Rivals need it; none of them chooses afterwards.
  RivalBackend* rivals = nullptr;
  // Rows of a prompt that rivals with a memory watch, evenly spread; 0: all.
  int32_t watched_rows = 0;
  std::function<void(int64_t done, int64_t total)> progress;  // windows; may be empty
};

// Means over decode rows, layers and heads.
struct NeedleDensities {
  double head = 1.0;
  double join = 1.0;  // union
};

struct NeedleScore {
  std::vector<bool> hits;      // by window: every token of the answer was the most likely one
  double answer_loss = 0.0;    // nats per token of the answers
  double union_density = 1.0;  // of the decode rows
  // Densities of the decode rows in front of the question, and of those from it on; 1 where there
  // are none.
  NeedleDensities routine;
  NeedleDensities query;

  int64_t found() const { return std::ranges::count(hits, true); }
};

// One score per attention, in order. The answer is teacher-forced. Errors of `runners`.
absl::StatusOr<std::vector<NeedleScore>> EvaluateNeedles(
    const RunnerSource& runners, std::span<const NeedleWindow> windows,
    std::span<const EvaluatedAttention> attentions, const NeedleEvaluationOptions& options);

}  // namespace eta
