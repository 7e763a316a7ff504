#include "calibration/evaluation/needles/needle_evaluation.h"

#include <algorithm>
#include <numeric>

#include "calibration/evaluation/attention/sequence_settings.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

class NeedleRun {
 public:
  NeedleRun(SequenceRunner& runner, const EvaluatedAttention& attention,
            const NeedleEvaluationOptions& options)
      : runner_(runner),
        attention_(attention),
        options_(options),
        attended_(Cells(runner.config().num_query_heads)),
        read_(Cells(runner.config().num_kv_heads)),
        logprobs_(static_cast<size_t>(runner.max_rows())),
        best_(static_cast<size_t>(runner.max_rows())) {}

  absl::Status Window(const NeedleWindow& window) {
    const std::span<const int32_t> tokens = window.tokens;
    const auto answer = static_cast<size_t>(window.answer);
    const auto prefill = static_cast<size_t>(
        options_.prefill > 0 ? std::min(options_.prefill, window.answer - 1) : window.question);
    RETURN_IF_ERROR(runner_.Begin(SequenceSettingsOf(
        attention_, options_.special_ids, runner_.config(), static_cast<int64_t>(tokens.size()))));
    hit_ = true;
    question_ = static_cast<size_t>(window.question);
    RETURN_IF_ERROR(Feed(tokens, 0, prefill, RowKind::kPrefill, false));
    const RowKind rest = attention_.options.admit_all ? RowKind::kPrefill : RowKind::kDecode;
    RETURN_IF_ERROR(Feed(tokens, prefill, answer - 1, rest, false));
    RETURN_IF_ERROR(Feed(tokens, answer - 1, tokens.size() - 1, rest, true));
    score_.hits.push_back(hit_);
    return absl::OkStatus();
  }

  NeedleScore Finish() {
    if (answer_tokens_ > 0) score_.answer_loss /= static_cast<double>(answer_tokens_);
    score_.routine = routine_.Means();
    score_.query = query_.Means();
    const double rows = routine_.rows + query_.rows;
    if (rows > 0.0) score_.union_density = (routine_.join + query_.join) / rows;
    return score_;
  }

 private:
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
      if (kind == RowKind::kDecode) {
        rows.outputs = {.tokens_attended = attended_.data(), .tokens_read = read_.data()};
      }
      RETURN_IF_ERROR(runner_.Run(rows));
      if (kind == RowKind::kDecode) Count(count, begin);
      for (size_t i = 0; i < rows.targets.size(); ++i) {
        hit_ = hit_ && best_[i] == rows.targets[i];
        score_.answer_loss -= logprobs_[i];
        ++answer_tokens_;
      }
    }
    return absl::OkStatus();
  }

  // Sums over rows.
  struct Densities {
    double head = 0.0;
    double join = 0.0;
    double rows = 0.0;

    NeedleDensities Means() const {
      return rows > 0.0 ? NeedleDensities{head / rows, join / rows} : NeedleDensities();
    }
  };

  size_t Cells(int32_t heads) const {
    return static_cast<size_t>(runner_.config().num_layers) *
           static_cast<size_t>(runner_.max_rows()) * static_cast<size_t>(heads);
  }

  // The mean of counts [L, rows, heads] over layers and heads, for one row.
  double RowMean(const std::vector<int32_t>& counts, int32_t heads, size_t rows, size_t row) const {
    const auto layers = static_cast<size_t>(runner_.config().num_layers);
    int64_t sum = 0;
    for (size_t layer = 0; layer < layers; ++layer) {
      const auto first = counts.begin() + static_cast<std::ptrdiff_t>((layer * rows + row) *
                                                                      static_cast<size_t>(heads));
      sum = std::accumulate(first, first + heads, sum);
    }
    return static_cast<double>(sum) / (static_cast<double>(layers) * heads);
  }

  // Adds what `count` decode rows read, the first of them at `position`.
  void Count(size_t count, size_t position) {
    for (size_t row = 0; row < count; ++row) {
      const auto keys = static_cast<double>(position + row + 1);
      Densities& sums = position + row < question_ ? routine_ : query_;
      sums.head += RowMean(attended_, runner_.config().num_query_heads, count, row) / keys;
      sums.join += RowMean(read_, runner_.config().num_kv_heads, count, row) / keys;
      sums.rows += 1.0;
    }
  }

  SequenceRunner& runner_;
  const EvaluatedAttention& attention_;
  const NeedleEvaluationOptions& options_;
  std::vector<int32_t> attended_;  // [L, R, HQ]
  std::vector<int32_t> read_;      // [L, R, HKV]
  std::vector<float> logprobs_;
  std::vector<int32_t> best_;
  bool hit_ = true;
  NeedleScore score_;
  int64_t answer_tokens_ = 0;
  size_t question_ = 0;
  Densities routine_;
  Densities query_;
};

}  // namespace

absl::StatusOr<std::vector<NeedleScore>> EvaluateNeedles(
    const RunnerSource& runners, std::span<const NeedleWindow> windows,
    std::span<const EvaluatedAttention> attentions, const NeedleEvaluationOptions& options) {
  std::vector<NeedleScore> scores;
  int64_t done = 0;
  const auto total = static_cast<int64_t>(windows.size() * attentions.size());
  for (const EvaluatedAttention& attention : attentions) {
    if (options.rivals) options.rivals->Use(attention.rival);
    const absl::StatusOr<SequenceRunner*> runner = runners(attention.geometry);
    if (!runner.ok()) return runner.status();
    NeedleRun run(**runner, attention, options);
    for (const NeedleWindow& window : windows) {
      RETURN_IF_ERROR(run.Window(window));
      if (options.progress) options.progress(++done, total);
    }
    scores.push_back(run.Finish());
  }
  return scores;
}

absl::StatusOr<std::vector<NeedleScore>> EvaluateNeedles(
    SequenceRunner& runner, std::span<const NeedleWindow> windows,
    std::span<const EvaluatedAttention> attentions, const NeedleEvaluationOptions& options) {
  return EvaluateNeedles(OnlyRunner(runner), windows, attentions, options);
}

}  // namespace eta
