#include "calibration/evaluation/prove/greedy_pair.h"

#include <algorithm>
#include <utility>

#include "calibration/evaluation/attention/sequence_settings.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

// H2O's sums over all rows of long prompts would take the host longer than all else takes.
constexpr size_t kMostWatchedRows = 2048;

}  // namespace

GreedyPair::GreedyPair(SequenceRunner& runner, RivalBackend& rivals, const Tokenizer& tokenizer,
                       std::span<const EvaluatedAttention> ways)
    : runner_(runner),
      rivals_(rivals),
      tokenizer_(tokenizer),
      ways_(ways),
      same_prompt_(SamePrompt(ways[0], ways[1])) {}

void GreedyPair::Begin(std::vector<int32_t> prompt, int32_t max_tokens) {
  prompt_ = std::move(prompt);
  max_tokens_ = max_tokens;
  prompted_.reset();
}

SequenceSettings GreedyPair::Settings(size_t way) const {
  return SequenceSettingsOf(ways_[way], tokenizer_.special_ids(), runner_.config(),
                            static_cast<int64_t>(prompt_.size()) + max_tokens_);
}

absl::StatusOr<int32_t> GreedyPair::Step(int32_t token, RowKind kind) {
  const int32_t any = 0;
  float logprob = 0.0f;
  int32_t best = 0;
  RETURN_IF_ERROR(runner_.Run({.tokens = std::span(&token, 1),
                               .kind = kind,
                               .targets = std::span(&any, 1),
                               .logprobs = std::span(&logprob, 1),
                               .best = std::span(&best, 1)}));
  return best;
}

absl::Status GreedyPair::RunPrompt(size_t way) {
  prompted_.reset();
  rivals_.Prepare({ways_[0].rival, ways_[1].rival},
                  static_cast<int32_t>(prompt_.size() / kMostWatchedRows + 1));
  RETURN_IF_ERROR(runner_.Begin(Settings(way)));
  RETURN_IF_ERROR(runner_.RunPrompt(std::span(prompt_).first(prompt_.size() - 1)));
  ASSIGN_OR_RETURN(first_, Step(prompt_.back(), RowKind::kPrefill));
  runner_.Mark();
  prompted_ = way;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> GreedyPair::Continue(size_t way, const GoesOn& goes_on) {
  if (!prompted_ || (*prompted_ != way && !same_prompt_)) RETURN_IF_ERROR(RunPrompt(way));
  RETURN_IF_ERROR(runner_.Return(Settings(way)));
  rivals_.Choose(ways_[way].rival);
  const std::vector<int32_t>& ends = tokenizer_.eos_ids();
  std::vector<int32_t> tokens = {first_};
  while (std::ssize(tokens) < max_tokens_ && std::ranges::find(ends, tokens.back()) == ends.end() &&
         goes_on(tokens)) {
    ASSIGN_OR_RETURN(const int32_t next, Step(tokens.back(), RowKind::kDecode));
    tokens.push_back(next);
  }
  return tokens;
}

}  // namespace eta
