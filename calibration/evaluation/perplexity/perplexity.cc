#include "calibration/evaluation/perplexity/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "calibration/evaluation/attention/sequence_settings.h"
#include "engine/base/status_macros.h"
#include "engine/model/kv_cache.h"
#include "engine/request/attention_sums.h"

namespace eta {
namespace {

using Seconds = std::chrono::duration<double>;

// Adds up the tokens that decode rows attended to and read, as shares of their keys.
class DensityMeter {
 public:
  DensityMeter(const SequenceRunner& runner, const EvaluatedAttention& attention)
      : DensityMeter(runner.config(), runner.geometry(), attention, runner.max_rows()) {}
  DensityMeter(const ModelConfig& config, const KvGeometry& geometry,
               const EvaluatedAttention& attention, int32_t max_rows)
      : geometry_(geometry),
        attention_(attention),
        record_bytes_(attention.rival ? attention.rival->IndexBytes(
                                            geometry, config.num_query_heads / config.num_kv_heads)
                                      : IndexRecordBytes(geometry)),
        layers_(static_cast<size_t>(config.num_layers)),
        query_heads_(static_cast<size_t>(config.num_query_heads)),
        kv_heads_(static_cast<size_t>(config.num_kv_heads)),
        attended_(layers_ * static_cast<size_t>(max_rows) * query_heads_),
        read_(layers_ * static_cast<size_t>(max_rows) * kv_heads_),
        values_(read_.size()),
        above_(layers_ * query_heads_),
        above_admitted_(layers_ * query_heads_) {}

  ForwardOutputs Outputs(bool recall) {
    return {.tokens_attended = attended_.data(),
            .tokens_read = read_.data(),
            .values_read = values_.data(),
            .above = recall ? above_.data() : nullptr,
            .above_admitted = recall ? above_admitted_.data() : nullptr};
  }

  // Adds a step of `rows` decode rows, the first of them at `position`.
  void Absorb(size_t rows, int32_t position) {
    for (size_t row = 0; row < rows; ++row) {
      const double keys = static_cast<double>(position) + static_cast<double>(row) + 1.0;
      head_sum_ += RowSum(attended_, query_heads_, rows, row) / keys;
      union_sum_ += RowSum(read_, kv_heads_, rows, row) / keys;
      values_sum_ += RowSum(values_, kv_heads_, rows, row) / keys;
      const int64_t index = IndexBytesRead(attention_.options, geometry_,
                                           position + static_cast<int32_t>(row) + 1, record_bytes_);
      index_sum_ +=
          static_cast<double>(index) / (keys * static_cast<double>(KvTokenBytes(geometry_)));
    }
    rows_ += rows;
  }

  // Adds a step of `rows` rows of sparse prefill, the first of them at `position`.
  void AbsorbPrefill(size_t rows, int32_t position) {
    for (size_t row = 0; row < rows; ++row) {
      const double keys = static_cast<double>(position) + static_cast<double>(row) + 1.0;
      prefill_sum_ += RowSum(attended_, query_heads_, rows, row) / keys;
    }
    prefill_rows_ += rows;
  }

  std::optional<double> PrefillDensity() const {
    if (prefill_rows_ == 0) return std::nullopt;
    return prefill_sum_ / static_cast<double>(prefill_rows_ * layers_ * query_heads_);
  }
  double HeadDensity() const { return head_sum_ / Cells(query_heads_); }
  double UnionDensity() const { return union_sum_ / Cells(kv_heads_); }
  double IndexRead() const { return index_sum_ / static_cast<double>(rows_); }
  double ValuesRead() const { return values_sum_ / Cells(kv_heads_); }
  std::optional<double> Recall() const {
    const auto above = std::accumulate(above_.begin(), above_.end(), int64_t{0});
    const auto admitted =
        std::accumulate(above_admitted_.begin(), above_admitted_.end(), int64_t{0});
    if (above == 0) return std::nullopt;
    return static_cast<double>(admitted) / static_cast<double>(above);
  }
  std::vector<double> HeadRecall() const {
    std::vector<double> recall;
    for (size_t i = 0; i < above_.size(); ++i) {
      if (above_[i] == 0) continue;
      recall.push_back(static_cast<double>(above_admitted_[i]) / static_cast<double>(above_[i]));
    }
    return recall;
  }

 private:
  // The sum of counts [L, rows, heads] over layers and heads, for one row.
  double RowSum(const std::vector<int32_t>& counts, size_t heads, size_t rows, size_t row) const {
    int64_t sum = 0;
    for (size_t layer = 0; layer < layers_; ++layer) {
      const auto begin = counts.begin() + static_cast<std::ptrdiff_t>((layer * rows + row) * heads);
      sum = std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(heads), sum);
    }
    return static_cast<double>(sum);
  }
  double Cells(size_t heads) const { return static_cast<double>(rows_ * layers_ * heads); }

  const KvGeometry geometry_;
  const EvaluatedAttention& attention_;
  const int64_t record_bytes_;  // what it reads to judge a block, per layer and KV head
  size_t layers_;
  size_t query_heads_;
  size_t kv_heads_;
  std::vector<int32_t> attended_;        // [L, R, HQ]
  std::vector<int32_t> read_;            // [L, R, HKV]
  std::vector<int32_t> values_;          // [L, R, HKV]
  std::vector<int64_t> above_;           // [L, HQ]
  std::vector<int64_t> above_admitted_;  // [L, HQ]
  double head_sum_ = 0.0;
  double union_sum_ = 0.0;
  double values_sum_ = 0.0;
  double index_sum_ = 0.0;
  size_t rows_ = 0;
  double prefill_sum_ = 0.0;
  size_t prefill_rows_ = 0;
};

// What one way of attending is measured by.
struct Meters {
  DensityMeter density;
  ShadowMeter shadow;
};

class Evaluation {
 public:
  Evaluation(const RunnerSource& runners, const PerplexityOptions& options, int64_t total_rows)
      : runners_(runners), options_(options), total_rows_(total_rows) {}

  absl::StatusOr<AttentionScore> Score(const EvaluatedAttention& attention,
                                       std::span<const std::vector<int32_t>> windows) {
    ASSIGN_OR_RETURN(SequenceRunner* const runner, runners_(attention.geometry));
    AttentionScore score;
    Meters meters = {
        DensityMeter(*runner, attention),
        ShadowMeter(runner->config(), attention.options.admit_all ? 0.0 : options_.mass)};
    logprobs_.resize(static_cast<size_t>(runner->max_rows()));
    best_.resize(logprobs_.size());
    if (options_.rivals) options_.rivals->Use(attention.rival);
    const int64_t rows_before = rows_done_;
    const auto start = std::chrono::steady_clock::now();
    for (const std::vector<int32_t>& window : windows) {
      RETURN_IF_ERROR(Window(*runner, attention, window, meters, score));
    }
    const Seconds taken = std::chrono::steady_clock::now() - start;
    score.tokens_per_second = static_cast<double>(rows_done_ - rows_before) / taken.count();
    score.loss = BlockMeanInterval(score.losses);
    score.top_1 /= static_cast<double>(score.losses.size());
    score.shadow = meters.shadow.Summary();
    if (!attention.options.admit_all) {
      score.head_density = meters.density.HeadDensity();
      score.union_density = meters.density.UnionDensity();
      score.v_read = meters.density.ValuesRead();
      score.prefill_density = meters.density.PrefillDensity();
      score.index_read = meters.density.IndexRead();
      if (Recall(attention)) {
        score.recall = meters.density.Recall();
        score.head_recall = meters.density.HeadRecall();
      }
    }
    return score;
  }

 private:
  // A rival's selection knows no thresholds that keys could reach.
  bool Recall(const EvaluatedAttention& attention) const {
    return options_.recall && !attention.rival;
  }

  absl::Status Window(SequenceRunner& runner, const EvaluatedAttention& attention,
                      std::span<const int32_t> window, Meters& meters, AttentionScore& score) {
    const size_t rows = window.size() - 1;
    absl::Status status = runner.Begin(SequenceSettingsOf(
        attention, options_.special_ids, runner.config(), static_cast<int64_t>(rows)));
    const auto prefill = static_cast<size_t>(options_.prefill);
    const bool full = attention.options.admit_all;
    size_t begin = 0;
    while (status.ok() && begin < rows) {
      const bool prompt = begin < prefill;
      const size_t end =
          std::min(begin + static_cast<size_t>(runner.max_rows()), prompt ? prefill : rows);
      const size_t count = end - begin;
      RunnerStep step = {.tokens = window.subspan(begin, count),
                         .kind = prompt || full ? RowKind::kPrefill : RowKind::kDecode};
      const bool sparse_prompt = prompt && attention.options.sparse_prefill && !full;
      if (sparse_prompt) step.outputs = meters.density.Outputs(/*recall=*/false);
      if (!prompt) {
        step.targets = window.subspan(begin + 1, count);
        step.logprobs = std::span(logprobs_).first(count);
        step.best = std::span(best_).first(count);
        if (!full) {
          step.outputs = meters.density.Outputs(Recall(attention));
          step.outputs.shadow = meters.shadow.Choose(count, static_cast<int32_t>(begin));
        }
      }
      status = runner.Run(step);
      if (!status.ok()) break;
      for (const float logprob : step.logprobs) score.losses.push_back(-logprob);
      for (size_t i = 0; i < step.best.size(); ++i) {
        if (step.best[i] == step.targets[i]) score.top_1 += 1.0;
      }
      if (sparse_prompt) meters.density.AbsorbPrefill(count, static_cast<int32_t>(begin));
      if (step.kind == RowKind::kDecode) {
        meters.density.Absorb(count, static_cast<int32_t>(begin));
        meters.shadow.Absorb();
      }
      begin = end;
      rows_done_ += static_cast<int64_t>(count);
      if (options_.progress) options_.progress(rows_done_, total_rows_);
    }
    return status;
  }

  const RunnerSource& runners_;
  const PerplexityOptions& options_;
  int64_t total_rows_;
  int64_t rows_done_ = 0;
  std::vector<float> logprobs_;
  std::vector<int32_t> best_;
};

}  // namespace

absl::StatusOr<std::vector<AttentionScore>> EvaluatePerplexity(
    const RunnerSource& runners, std::span<const std::vector<int32_t>> windows,
    std::span<const EvaluatedAttention> attentions, const PerplexityOptions& options) {
  int64_t rows = 0;
  for (const std::vector<int32_t>& window : windows) {
    if (window.size() < static_cast<size_t>(options.prefill) + 2) {
      return absl::InvalidArgumentError("prefill: must leave at least one row of a window");
    }
    rows += static_cast<int64_t>(window.size()) - 1;
  }
  const absl::Cleanup done_choosing = [&] {
    if (options.rivals) options.rivals->Use(nullptr);
  };
  Evaluation evaluation(runners, options, rows * static_cast<int64_t>(attentions.size()));
  std::vector<AttentionScore> scores;
  for (const EvaluatedAttention& attention : attentions) {
    ASSIGN_OR_RETURN(AttentionScore score, evaluation.Score(attention, windows));
    scores.push_back(std::move(score));
    std::vector<float> difference(scores.front().losses.size());
    std::ranges::transform(scores.back().losses, scores.front().losses, difference.begin(),
                           std::minus<>());
    scores.back().loss_over_first = BlockMeanInterval(difference);
  }
  return scores;
}

}  // namespace eta
