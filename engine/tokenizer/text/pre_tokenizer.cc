// lint: untrusted-input, fuzz-covered
#include "engine/tokenizer/text/pre_tokenizer.h"

namespace eta {

void CutByAll(std::span<const std::unique_ptr<const PreTokenizer>> stages, TextPiece piece,
              CutRun& run, PieceSink sink) {
  if (stages.empty()) {
    sink(piece);
    return;
  }
  stages.front()->Cut(piece, run, [stages, &run, sink](TextPiece part) {
    CutByAll(stages.subspan(1), part, run, sink);
  });
}

void MatchSplitter::Add(size_t end, bool is_match) {
  bool joins = false;
  switch (behavior_) {
    case MatchBehavior::kRemoved:
    case MatchBehavior::kIsolated:
      break;
    case MatchBehavior::kMergedWithPrevious:
      joins = any_ && is_match && !last_match_;
      break;
    case MatchBehavior::kMergedWithNext:
      joins = any_ && !is_match && last_match_;
      break;
    case MatchBehavior::kContiguous:
      joins = any_ && is_match == last_match_;
      break;
  }
  if (!joins) {
    Put(held_, last_);
    held_ = last_;
  }
  if (is_match && behavior_ == MatchBehavior::kRemoved) held_ = end;
  last_ = end;
  last_match_ = is_match;
  any_ = true;
}

}  // namespace eta
