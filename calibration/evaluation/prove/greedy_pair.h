// Greedy continuations of one prompt by full attention and by another way. The prompt is computed
// once for both, wherever its rows are the same (SamePrompt). As the engine serves a prompt, all of
// its rows are prefill rows: the first token of an answer is the prompt's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/rivals/rival_backend.h"
#include "calibration/evaluation/runtime/runner.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {

// Not thread-safe.
class GreedyPair {
 public:
  // The runner must run through `rivals`. `ways`: full attention and the other one, on the runner's
  // cache. All must outlive the pair.
  GreedyPair(SequenceRunner& runner, RivalBackend& rivals, const Tokenizer& tokenizer,
             std::span<const EvaluatedAttention> ways);
  ~GreedyPair() { rivals_.Use(nullptr); }
  GreedyPair(const GreedyPair&) = delete;
  GreedyPair& operator=(const GreedyPair&) = delete;

  // A prompt, and how many tokens may follow it. REQUIRES: both at least 1.
  void Begin(std::vector<int32_t> prompt, int32_t max_tokens);

  // Asked behind every token but the last possible one.
  using GoesOn = std::function<bool(std::span<const int32_t> continuation)>;
  // The tokens by ways[way], up to end of text, which is one of them. Errors of the runner.
  absl::StatusOr<std::vector<int32_t>> Continue(size_t way, const GoesOn& goes_on);

 private:
  absl::Status RunPrompt(size_t way);
  absl::StatusOr<int32_t> Step(int32_t token, RowKind kind);
  SequenceSettings Settings(size_t way) const;

  SequenceRunner& runner_;
  RivalBackend& rivals_;
  const Tokenizer& tokenizer_;
  std::span<const EvaluatedAttention> ways_;
  const bool same_prompt_;
  std::vector<int32_t> prompt_;
  int32_t max_tokens_ = 0;
  std::optional<size_t> prompted_;  // the way that the prompt's rows were computed by
  int32_t first_ = 0;               // what follows them
};

}  // namespace eta
