#include "calibration/evaluation/needles/needle_evaluation.h"

#include <algorithm>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "calibration/evaluation/attention/sequence_settings.h"
#include "calibration/evaluation/runtime/read_meter.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {
namespace {

size_t PromptRows(const NeedleWindow& window, const NeedleEvaluationOptions& options) {
  return static_cast<size_t>(options.prefill > 0 ? std::min(options.prefill, window.answer - 1)
                                                 : window.question);
}

int32_t WatchStride(const NeedleWindow& window, const NeedleEvaluationOptions& options) {
  if (options.watched_rows <= 0) return 1;
  const auto rows = static_cast<int32_t>(PromptRows(window, options));
  return (rows + options.watched_rows - 1) / options.watched_rows;
}

// One attention on one runner. The rows in front of what it judges are a prompt, which runs of one
// kind may share.
class NeedleRun {
 public:
  NeedleRun(SequenceRunner& runner, const EvaluatedAttention& attention,
            const NeedleEvaluationOptions& options)
      : runner_(runner),
        attention_(attention),
        options_(options),
        meter_(runner, attention.options),
        logprobs_(static_cast<size_t>(runner.max_rows())),
        best_(static_cast<size_t>(runner.max_rows())) {}

  // Begins a window and computes its prompt.
  absl::Status Prompt(const NeedleWindow& window) {
    RETURN_IF_ERROR(runner_.Begin(Settings(window)));
    RETURN_IF_ERROR(
        runner_.RunPrompt(std::span(window.tokens).first(PromptRows(window, options_))));
    runner_.Mark();
    return absl::OkStatus();
  }

  // Goes on from the prompt, which this run or one of the same prompt has computed.
  absl::Status Window(const NeedleWindow& window) {
    const std::span<const int32_t> tokens = window.tokens;
    const auto answer = static_cast<size_t>(window.answer);
    RETURN_IF_ERROR(runner_.Return(Settings(window)));
    if (options_.rivals) options_.rivals->Choose(attention_.rival);
    hit_ = true;
    question_ = static_cast<size_t>(window.question);
    const RowKind rest = attention_.options.admit_all ? RowKind::kPrefill : RowKind::kDecode;
    RETURN_IF_ERROR(Feed(tokens, PromptRows(window, options_), answer - 1, rest, false));
    RETURN_IF_ERROR(Feed(tokens, answer - 1, tokens.size() - 1, rest, true));
    score_.hits.push_back(hit_);
    return absl::OkStatus();
  }

  NeedleScore Finish() {
    if (answer_tokens_ > 0) score_.answer_loss /= static_cast<double>(answer_tokens_);
    score_.routine = Means(routine_);
    score_.query = Means(query_);
    AttentionSums all = routine_;
    all.Add(query_);
    score_.union_density = Means(all).join;
    return score_;
  }

 private:
  SequenceSettings Settings(const NeedleWindow& window) const {
    return SequenceSettingsOf(attention_, options_.special_ids, runner_.config(),
                              static_cast<int64_t>(window.tokens.size()));
  }

  // Feeds tokens [begin, end), the last window's answer among their targets if `judged`.
  absl::Status Feed(std::span<const int32_t> tokens, size_t begin, size_t end, RowKind kind,
                    bool judged) {
    const auto step = static_cast<size_t>(runner_.max_rows());
    for (; begin < end; begin += step) {
      const size_t count = std::min(step, end - begin);
      RunnerStep rows = {.tokens = tokens.subspan(begin, count), .kind = kind};
      if (judged) {
        rows.targets = tokens.subspan(begin + 1, count);
        rows.logprobs = std::span(logprobs_).first(count);
        rows.best = std::span(best_).first(count);
      }
      if (kind == RowKind::kDecode) rows.outputs = meter_.Outputs();
      RETURN_IF_ERROR(runner_.Run(rows));
      for (size_t i = 0; kind == RowKind::kDecode && i < count; ++i) {
        (begin + i < question_ ? routine_ : query_).Add(meter_.DecodeRow(count, i, begin));
      }
      for (size_t i = 0; i < rows.targets.size(); ++i) {
        hit_ = hit_ && best_[i] == rows.targets[i];
        score_.answer_loss -= logprobs_[i];
        ++answer_tokens_;
      }
    }
    return absl::OkStatus();
  }

  static NeedleDensities Means(const AttentionSums& sums) {
    return sums.decode_rows > 0 ? NeedleDensities{sums.head_density(), sums.union_density()}
                                : NeedleDensities();
  }

  SequenceRunner& runner_;
  const EvaluatedAttention& attention_;
  const NeedleEvaluationOptions& options_;
  ReadMeter meter_;
  std::vector<float> logprobs_;
  std::vector<int32_t> best_;
  bool hit_ = true;
  NeedleScore score_;
  int64_t answer_tokens_ = 0;
  size_t question_ = 0;
  AttentionSums routine_;  // of the rows in front of the question
  AttentionSums query_;    // of the others
};

}  // namespace

absl::StatusOr<std::vector<NeedleWindow>> ReadNeedleWindows(TextSource& source,
                                                            const Tokenizer& tokenizer,
                                                            const NeedleOptions& options) {
  const size_t wanted = static_cast<size_t>(options.context) * static_cast<size_t>(options.windows);
  std::vector<int32_t> text;
  while (text.size() < wanted) {
    ASSIGN_OR_RETURN(const std::optional<std::string> document, source.Next());
    if (!document.has_value()) break;
    const absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(*document, false);
    if (!ids.ok()) return source.InDocument(ids.status());
    text.insert(text.end(), ids->begin(), ids->end());
    RETURN_IF_ERROR(CheckTextTokens(text.size()));
  }
  return MakeNeedleWindows(text, tokenizer, options);
}

absl::StatusOr<std::vector<NeedleScore>> EvaluateNeedles(
    const RunnerSource& runners, std::span<const NeedleWindow> windows,
    std::span<const EvaluatedAttention> attentions, const NeedleEvaluationOptions& options) {
  const absl::Cleanup done_choosing = [&] {
    if (options.rivals) options.rivals->Use(nullptr);
  };
  std::vector<NeedleScore> scores(attentions.size());
  int64_t done = 0;
  const auto total = static_cast<int64_t>(windows.size() * attentions.size());
  for (const std::vector<size_t>& group : ByPrompt(attentions, /*rivals_apart=*/false)) {
    if (options.rivals) options.rivals->Use(nullptr);  // copies of another cache
    ASSIGN_OR_RETURN(SequenceRunner* const runner, runners(attentions[group.front()].geometry));
    std::vector<NeedleRun> runs;
    std::vector<std::shared_ptr<const Rival>> rivals;
    for (const size_t i : group) {
      runs.emplace_back(*runner, attentions[i], options);
      rivals.push_back(attentions[i].rival);
    }
    for (const NeedleWindow& window : windows) {
      if (options.rivals) options.rivals->Prepare(rivals, WatchStride(window, options));
      RETURN_IF_ERROR(runs.front().Prompt(window));
      for (NeedleRun& run : runs) {
        RETURN_IF_ERROR(run.Window(window));
        if (options.progress) options.progress(++done, total);
      }
    }
    for (size_t i = 0; i < runs.size(); ++i) scores[group[i]] = runs[i].Finish();
  }
  return scores;
}

}  // namespace eta
