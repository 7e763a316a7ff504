#include "calibration/evaluation/perplexity/perplexity.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "calibration/evaluation/attention/sequence_settings.h"
#include "calibration/evaluation/runtime/read_meter.h"
#include "engine/base/status_macros.h"
#include "engine/model/kv_cache.h"
#include "engine/request/attention_sums.h"

namespace eta {
namespace {

using Seconds = std::chrono::duration<double>;

// Adds up what rows attended to and read, as shares of their keys.
class DensityMeter {
 public:
  DensityMeter(const SequenceRunner& runner, const EvaluatedAttention& attention)
      : geometry_(runner.geometry()),
        attention_(attention),
        record_bytes_(attention.rival
                          ? attention.rival->IndexBytes(geometry_, runner.config().group_size())
                          : IndexRecordBytes(geometry_)),
        choosing_layers_(ChoosingLayers(runner.config().num_layers, attention.rival.get())),
        meter_(runner, attention.options),
        above_(static_cast<size_t>(runner.config().num_layers) *
               static_cast<size_t>(runner.config().num_query_heads)),
        above_admitted_(above_.size()) {}

  ForwardOutputs Outputs(bool recall) {
    ForwardOutputs outputs = meter_.Outputs();
    if (!recall) return outputs;
    outputs.above = above_.data();
    outputs.above_admitted = above_admitted_.data();
    return outputs;
  }

  // Adds a step of `rows` decode rows, the first of them at `position`.
  void Absorb(size_t rows, size_t position) {
    for (size_t row = 0; row < rows; ++row) {
      const AttentionSums sums = meter_.DecodeRow(rows, row, position);
      sums_.Add(sums);
      values_sum_ += Share(sums.values_read, sums.keys_cached);
      const auto keys = static_cast<int32_t>(position + row + 1);
      index_sum_ += choosing_layers_ *
                    Share(IndexBytesRead(attention_.options, geometry_, keys, record_bytes_),
                          keys * KvTokenBytes(geometry_));
    }
  }

  // Adds a step of `rows` rows of sparse prefill, the first of them at `position`.
  void AbsorbPrefill(size_t rows, size_t position) {
    for (size_t row = 0; row < rows; ++row) sums_.Add(meter_.PrefillRow(rows, row, position));
  }

  std::optional<double> PrefillDensity() const {
    if (sums_.prefill_rows == 0) return std::nullopt;
    return sums_.prefill_density();
  }
  double HeadDensity() const { return sums_.head_density(); }
  double UnionDensity() const { return sums_.union_density(); }
  double IndexRead() const { return index_sum_ / static_cast<double>(sums_.decode_rows); }
  double ValuesRead() const { return values_sum_ / static_cast<double>(sums_.decode_rows); }
  std::optional<double> Recall() const {
    const auto above = std::accumulate(above_.begin(), above_.end(), int64_t{0});
    const auto admitted =
        std::accumulate(above_admitted_.begin(), above_admitted_.end(), int64_t{0});
    if (above == 0) return std::nullopt;
    return Share(admitted, above);
  }
  std::vector<double> HeadRecall() const {
    std::vector<double> recall;
    for (size_t i = 0; i < above_.size(); ++i) {
      if (above_[i] == 0) continue;
      recall.push_back(Share(above_admitted_[i], above_[i]));
    }
    return recall;
  }

 private:
  static double Share(int64_t part, int64_t whole) {
    return static_cast<double>(part) / static_cast<double>(whole);
  }
  static double ChoosingLayers(int32_t layers, const Rival* rival) {
    const int32_t dense = rival != nullptr ? std::min(rival->dense_layers(), layers) : 0;
    return Share(layers - dense, layers);
  }

  const KvGeometry geometry_;
  const EvaluatedAttention& attention_;
  const int64_t record_bytes_;    // what it reads to judge a block, per layer and KV head
  const double choosing_layers_;  // share of the layers
  ReadMeter meter_;
  std::vector<int64_t> above_;           // [L, HQ]
  std::vector<int64_t> above_admitted_;  // [L, HQ]
  AttentionSums sums_;
  double values_sum_ = 0.0;
  double index_sum_ = 0.0;
};

// What one way of attending is measured by.
struct Meters {
  DensityMeter density;
  ShadowMeter shadow;
  DivergenceMeter divergence;
};

class Evaluation {
 public:
  Evaluation(const RunnerSource& runners, const PerplexityOptions& options, int64_t total_rows,
             int64_t scored_rows)
      : runners_(runners), options_(options), total_rows_(total_rows), scored_rows_(scored_rows) {}

  absl::StatusOr<AttentionScore> Score(const EvaluatedAttention& attention,
                                       std::span<const std::vector<int32_t>> windows) {
    ASSIGN_OR_RETURN(SequenceRunner* const runner, runners_(attention.geometry));
    AttentionScore score;
    first_.vocab_size = runner->config().vocab_size;
    RETURN_IF_ERROR(CheckDivergenceShare(options_.kl, scored_rows_, first_.vocab_size));
    Meters meters = {DensityMeter(*runner, attention),
                     ShadowMeter(runner->config(), MeasuresMass(attention) ? options_.mass : 0.0),
                     DivergenceMeter(options_.kl, first_)};
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
    score.window = static_cast<int32_t>(score.losses.size() / windows.size());
    score.loss = BlockMeanInterval(score.losses, score.window);
    score.top_1 /= static_cast<double>(score.losses.size());
    score.shadow = meters.shadow.Summary();
    score.divergence = meters.divergence.Mean();
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
  // The backend measures the blocks that it lists, not single keys.
  static bool MeasuresMass(const EvaluatedAttention& attention) {
    return !attention.options.admit_all && !(attention.rival && attention.rival->by_key());
  }
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
        meters.divergence.Choose(count);
        step.logit_rows = meters.divergence.rows();
        step.logits = meters.divergence.logits();
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
      if (!prompt) meters.divergence.Absorb();
      if (sparse_prompt) meters.density.AbsorbPrefill(count, begin);
      if (step.kind == RowKind::kDecode) {
        meters.density.Absorb(count, begin);
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
  int64_t total_rows_;   // of all attentions
  int64_t scored_rows_;  // of one
  int64_t rows_done_ = 0;
  std::vector<float> logprobs_;
  std::vector<int32_t> best_;
  KeptLogits first_;
};

}  // namespace

MeanInterval PairedDifference(const AttentionScore& score, const AttentionScore& other) {
  std::vector<float> difference(score.losses.size());
  std::ranges::transform(score.losses, other.losses, difference.begin(), std::minus<>());
  return BlockMeanInterval(difference, score.window);
}

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
  Evaluation evaluation(runners, options, rows * std::ssize(attentions),
                        rows - options.prefill * std::ssize(windows));
  std::vector<AttentionScore> scores;
  for (const EvaluatedAttention& attention : attentions) {
    ASSIGN_OR_RETURN(AttentionScore score, evaluation.Score(attention, windows));
    scores.push_back(std::move(score));
    scores.back().loss_over_first = PairedDifference(scores.back(), scores.front());
  }
  return scores;
}

}  // namespace eta
