#include "calibration/needles/retrieval_trials.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {
namespace {

constexpr int kMostKeys = 4;  // RULER's multi-key task

}  // namespace

absl::StatusOr<NeedleWindow> RetrievalTrials::Make(RetrievalKind kind, int32_t number) const {
  Draws draws(seed_, DrawPurpose::kRetrievalTrial,
              static_cast<uint64_t>(number) * kRetrievalKinds + static_cast<uint64_t>(kind));
  RetrievalTask task = MakeRetrievalTask(kind, kMostKeys, draws);
  task.questions.resize(1);
  ASSIGN_OR_RETURN(const TaskTokens tokens, TokenizeTask(task, tokenizer_));
  const size_t taken = tokenizer_.beginning().size() + tokens.count;
  if (taken >= length_) {
    return InvalidField("context", absl::StrCat("a retrieval task takes ", taken, " tokens"));
  }
  // A question inside a sentence would be read as part of it.
  std::vector<int32_t> filler =
      TextFrom(text_, static_cast<size_t>(draws.Below(text_.size())), length_ - taken);
  filler.resize(SentenceEnd(tokenizer_, filler, filler.size()));
  return MakeNeedleWindow(filler, PlaceNeedles(tokens.needles, filler, tokenizer_, draws),
                          QuestionNeedle(tokens.questions.front()), tokenizer_.beginning());
}

}  // namespace eta
