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

// The backend measures the blocks that it lists, not single keys.
bool MeasuresMass(const EvaluatedAttention& attention) {
  return !attention.options.admit_all && !(attention.rival && attention.rival->by_key());
}

// Ways of attending whose prompts are the same, on one runner: each goes on from one prompt.
class Evaluation {
 public:
  struct Way {
    const EvaluatedAttention& attention;
    size_t index;  // of all ways; others diverge from the first of all
    std::optional<Meters> meters = std::nullopt;
    AttentionScore score = {};
    Seconds taken = {};
  };

  Evaluation(const RunnerSource& runners, const PerplexityOptions& options, int64_t total_rows,
             int64_t scored_rows)
      : runners_(runners), options_(options), total_rows_(total_rows), scored_rows_(scored_rows) {}

  absl::Status Score(std::vector<Way>& ways, std::span<const std::vector<int32_t>> windows) {
    ASSIGN_OR_RETURN(SequenceRunner* const runner, runners_(ways.front().attention.geometry));
    first_.vocab_size = runner->config().vocab_size;
    RETURN_IF_ERROR(CheckDivergenceShare(options_.kl, scored_rows_, first_.vocab_size));
    logprobs_.resize(static_cast<size_t>(runner->max_rows()));
    best_.resize(logprobs_.size());
    if (options_.rivals) options_.rivals->Use(nullptr);  // no copies of another cache
    for (Way& way : ways) way.meters.emplace(MetersOf(*runner, way));
    int64_t rows = 0;
    for (const std::vector<int32_t>& window : windows) {
      RETURN_IF_ERROR(Window(*runner, ways, window));
      rows += std::ssize(window) - 1;
    }
    for (Way& way : ways) Finish(way, std::ssize(windows), rows);
    return absl::OkStatus();
  }

 private:
  // A rival's selection knows no thresholds that keys could reach.
  bool Recall(const EvaluatedAttention& attention) const {
    return options_.recall && !attention.rival;
  }

  Meters MetersOf(const SequenceRunner& runner, const Way& way) {
    return {DensityMeter(runner, way.attention),
            ShadowMeter(runner.config(), MeasuresMass(way.attention) ? options_.mass : 0.0),
            DivergenceMeter(options_.kl, first_, way.index == 0)};
  }

  absl::Status Window(SequenceRunner& runner, std::vector<Way>& ways,
                      std::span<const int32_t> window) {
    const auto settings = [&](const Way& way) {
      return SequenceSettingsOf(way.attention, options_.special_ids, runner.config(),
                                std::ssize(window) - 1);
    };
    std::vector<std::shared_ptr<const Rival>> rivals;
    for (const Way& way : ways) rivals.push_back(way.attention.rival);
    if (options_.rivals) options_.rivals->Prepare(rivals);
    const auto start = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(runner.Begin(settings(ways.front())));
    RETURN_IF_ERROR(Prompt(runner, ways, window.first(static_cast<size_t>(options_.prefill))));
    runner.Mark();
    const Seconds prompt = std::chrono::steady_clock::now() - start;
    for (Way& way : ways) {
      const auto turn = std::chrono::steady_clock::now();
      if (options_.turn) options_.turn(way.index);
      RETURN_IF_ERROR(runner.Return(settings(way)));
      if (options_.rivals) options_.rivals->Choose(way.attention.rival);
      RETURN_IF_ERROR(Rest(runner, way, window));
      way.taken += prompt + Seconds(std::chrono::steady_clock::now() - turn);
    }
    return absl::OkStatus();
  }

  // Sparse prefill is alone in its group.
  absl::Status Prompt(SequenceRunner& runner, std::vector<Way>& ways,
                      std::span<const int32_t> tokens) {
    Way& way = ways.front();
    const AttentionOptions& attention = way.attention.options;
    const bool sparse = attention.sparse_prefill && !attention.admit_all;
    const auto most = static_cast<size_t>(runner.max_rows());
    for (size_t begin = 0; begin < tokens.size(); begin += most) {
      const size_t count = std::min(most, tokens.size() - begin);
      RunnerStep step = {.tokens = tokens.subspan(begin, count), .kind = RowKind::kPrefill};
      if (sparse) step.outputs = way.meters->density.Outputs(/*recall=*/false);
      RETURN_IF_ERROR(runner.Run(step));
      if (sparse) way.meters->density.AbsorbPrefill(count, begin);
      Progress(static_cast<int64_t>(count) * std::ssize(ways));
    }
    return absl::OkStatus();
  }

  absl::Status Rest(SequenceRunner& runner, Way& way, std::span<const int32_t> window) {
    const bool full = way.attention.options.admit_all;
    Meters& meters = *way.meters;
    const size_t rows = window.size() - 1;
    const auto most = static_cast<size_t>(runner.max_rows());
    for (auto begin = static_cast<size_t>(options_.prefill); begin < rows; begin += most) {
      const size_t count = std::min(most, rows - begin);
      RunnerStep step = {.tokens = window.subspan(begin, count),
                         .kind = full ? RowKind::kPrefill : RowKind::kDecode,
                         .targets = window.subspan(begin + 1, count),
                         .logprobs = std::span(logprobs_).first(count),
                         .best = std::span(best_).first(count)};
      meters.divergence.Choose(count);
      step.logit_rows = meters.divergence.rows();
      step.logits = meters.divergence.logits();
      if (!full) {
        step.outputs = meters.density.Outputs(Recall(way.attention));
        step.outputs.shadow = meters.shadow.Choose(count, static_cast<int32_t>(begin));
      }
      RETURN_IF_ERROR(runner.Run(step));
      for (const float logprob : step.logprobs) way.score.losses.push_back(-logprob);
      for (size_t i = 0; i < count; ++i) {
        if (step.best[i] == step.targets[i]) way.score.top_1 += 1.0;
      }
      meters.divergence.Absorb();
      if (!full) {
        meters.density.Absorb(count, begin);
        meters.shadow.Absorb();
      }
      Progress(static_cast<int64_t>(count));
    }
    return absl::OkStatus();
  }

  void Finish(Way& way, int64_t windows, int64_t rows) const {
    AttentionScore& score = way.score;
    const Meters& meters = *way.meters;
    score.tokens_per_second = static_cast<double>(rows) / way.taken.count();
    score.window = static_cast<int32_t>(std::ssize(score.losses) / windows);
    score.loss = BlockMeanInterval(score.losses, score.window);
    score.top_1 /= static_cast<double>(score.losses.size());
    score.shadow = meters.shadow.Summary();
    score.divergence = meters.divergence.Mean();
    if (way.attention.options.admit_all) return;
    score.head_density = meters.density.HeadDensity();
    score.union_density = meters.density.UnionDensity();
    score.v_read = meters.density.ValuesRead();
    score.prefill_density = meters.density.PrefillDensity();
    score.index_read = meters.density.IndexRead();
    if (!Recall(way.attention)) return;
    score.recall = meters.density.Recall();
    score.head_recall = meters.density.HeadRecall();
  }

  void Progress(int64_t rows) {
    rows_done_ += rows;
    if (options_.progress) options_.progress(rows_done_, total_rows_);
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
  std::vector<AttentionScore> scores(attentions.size());
  for (const std::vector<size_t>& group : ByPrompt(attentions, /*rivals_apart=*/true)) {
    std::vector<Evaluation::Way> ways;
    for (const size_t i : group) ways.push_back({.attention = attentions[i], .index = i});
    RETURN_IF_ERROR(evaluation.Score(ways, windows));
    for (Evaluation::Way& way : ways) scores[way.index] = std::move(way.score);
  }
  for (AttentionScore& score : scores) {
    score.loss_over_first = PairedDifference(score, scores.front());
  }
  return scores;
}

}  // namespace eta
