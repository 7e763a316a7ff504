// The parts of a proof. Each takes from the log what it has measured already.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/evaluation/prove/proof_bench.h"
#include "calibration/evaluation/prove/proof_scores.h"
#include "calibration/needles/ruler_tasks.h"

namespace eta {

class ProofPart {
 public:
  virtual ~ProofPart() = default;
  // Adds what it measures to the scores. Errors of the runner, of texts and of the log.
  virtual absl::Status Measure(ProofScores& scores) = 0;
};

// Question `number` of a task at a length (RulerTasks::Make).
using QuestionSource =
    std::function<absl::StatusOr<RulerQuestion>(int task, int32_t length, int32_t number)>;

// Both ways answer RULER's questions, up to end of text, to max_tokens, or until all of the answer
// is said. First the plan's first questions of every task; then, of those that full attention can
// do, as many as show a loss.
std::unique_ptr<ProofPart> RulerPart(const ProofBench& bench, QuestionSource questions);

// Prompts of an operator as token ids.
struct TrafficPrompts {
  std::vector<std::vector<int32_t>> prompts;
  int64_t too_long = 0;  // left out: they leave no room for a continuation
};
// `path`: as TextSource reads it. `parse_special`: control tokens that a prompt spells are those
// tokens. Errors of the file, InvalidArgument (`traffic`) where no prompt is left.
absl::StatusOr<TrafficPrompts> ReadTraffic(const std::string& path, const Tokenizer& tokenizer,
                                           bool parse_special, const ProofPlan& plan);
// Greedy continuations of prompts by both ways, and the divergence over full attention's.
std::unique_ptr<ProofPart> TrafficPart(const ProofBench& bench, TrafficPrompts prompts);

// Perplexity and divergence on the bench's texts, in windows of the plan's longest length, or of
// the longest half, quarter... of it that fits into the text.
std::unique_ptr<ProofPart> TextPart(const ProofBench& bench);

// Decode steps of one stream at short contexts, the ways in turns.
std::unique_ptr<ProofPart> SpeedPart(const ProofBench& bench);

}  // namespace eta
