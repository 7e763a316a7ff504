#include "training/evaluation/held_out.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "absl/strings/str_cat.h"
#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/needles/needle_evaluation.h"
#include "calibration/evaluation/perplexity/perplexity.h"
#include "calibration/evaluation/runtime/runner.h"
#include "calibration/evaluation/text/text_source.h"
#include "calibration/evaluation/text/windows.h"
#include "engine/base/error.h"
#include "engine/base/files/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/model/kv_cache.h"
#include "engine/request/request_validation.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta::training {
namespace {

std::string FileName(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

// Full attention, and the server's default where the model has thresholds.
std::vector<EvaluatedAttention> Attentions(const ModelConfig& config, bool sparse) {
  std::vector<EvaluatedAttention> attentions;
  const auto add = [&](const char* name, AttentionMode mode) {
    attentions.push_back({ResolveAttention({.mode = mode}, config), name});
  };
  add("full", AttentionMode::kFull);
  if (sparse) add("dynamic", AttentionMode::kDynamic);
  return attentions;
}

HeldOutScore ScoreOf(const std::string& text, std::span<const AttentionScore> scores) {
  HeldOutScore score;
  score.text = text;
  score.full_perplexity = std::exp(scores[0].loss.mean);
  if (scores.size() > 1) {
    score.sparse_perplexity = std::exp(scores[1].loss.mean);
    score.head_density = scores[1].head_density;
    score.union_density = scores[1].union_density;
  }
  return score;
}

HeldOutScore MeanOf(std::span<const HeldOutScore> scores) {
  HeldOutScore mean;
  mean.head_density = 0.0;
  mean.union_density = 0.0;
  const auto count = static_cast<double>(scores.size());
  double full = 0.0;
  double sparse = 0.0;
  for (const HeldOutScore& score : scores) {
    full += std::log(score.full_perplexity) / count;
    sparse += score.sparse_perplexity > 0.0 ? std::log(score.sparse_perplexity) / count : 0.0;
    mean.head_density += score.head_density / count;
    mean.union_density += score.union_density / count;
  }
  mean.full_perplexity = std::exp(full);
  mean.sparse_perplexity = scores.front().sparse_perplexity > 0.0 ? std::exp(sparse) : 0.0;
  return mean;
}

// Of the predictions from row `first` on.
absl::StatusOr<BatchLoss> LossOf(TrainingModel& model, std::span<const int32_t> window,
                                 int32_t first, const StepSettings& settings) {
  std::vector<int32_t> targets(window.begin() + 1, window.end());
  std::fill_n(targets.begin(), first, -1);
  return model.Run({.sequences = 1,
                    .length = static_cast<int32_t>(targets.size()),
                    .tokens = window.first(targets.size()),
                    .targets = targets},
                   settings, /*teacher=*/nullptr, /*backward=*/false);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HeldOut>> HeldOut::Create(const HeldOutOptions& options,
                                                         const Tokenizer& tokenizer) {
  std::unique_ptr<HeldOut> held_out(new HeldOut(options, tokenizer));
  RETURN_IF_ERROR(held_out->Cut());
  return held_out;
}

absl::Status HeldOut::Cut() {
  for (const std::string& text : options_.texts) {
    ASSIGN_OR_RETURN(const std::unique_ptr<TextSource> source, TextSource::Open(text));
    absl::StatusOr<std::vector<std::vector<int32_t>>> cut =
        ReadWindows(*source, tokenizer_, options_.context, options_.windows);
    if (!cut.ok()) {
      return InvalidField(options_.flag, absl::StrCat(Quoted(FileName(text)), ": ",
                                                      std::string(cut.status().message())));
    }
    std::ranges::move(*cut, std::back_inserter(windows_));
    begins_.push_back(windows_.size());
  }
  if (options_.needles == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::unique_ptr<TextSource> source,
                   TextSource::Open(options_.texts.front()));
  ASSIGN_OR_RETURN(needles_,
                   ReadNeedleWindows(*source, tokenizer_,
                                     {.context = options_.context, .windows = options_.needles}));
  return absl::OkStatus();
}

int64_t HeldOut::tokens() const {
  return static_cast<int64_t>(windows_.size()) * (options_.context - prefill());
}

absl::StatusOr<HeldOutResult> HeldOut::Measure(
    const TensorSource& model, bool full_only,
    const std::function<void(int64_t done, int64_t total)>& progress) const {
  ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(model.config_json()));
  ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, MakeBackend(options_.backend));
  ASSIGN_OR_RETURN(const std::unique_ptr<SequenceRunner> runner,
                   SequenceRunner::Create(model, *backend,
                                          {.geometry = MakeKvGeometry(config, DType::kFloat16),
                                           .max_context = options_.context}));

  HeldOutResult result;
  result.sparse = config.has_predictor && !full_only;
  const std::vector<EvaluatedAttention> attentions = Attentions(config, result.sparse);
  for (size_t i = 0; i < options_.texts.size(); ++i) {
    const auto windows = std::span(windows_).subspan(begins_[i], begins_[i + 1] - begins_[i]);
    ASSIGN_OR_RETURN(const std::vector<AttentionScore> scores,
                     EvaluatePerplexity(OnlyRunner(*runner), windows, attentions,
                                        {.prefill = prefill(),
                                         .recall = false,
                                         .special_ids = tokenizer_.special_ids(),
                                         .progress = progress}));
    result.texts.push_back(ScoreOf(FileName(options_.texts[i]), scores));
    result.tokens += static_cast<int64_t>(scores.front().losses.size());
  }
  result.all = MeanOf(result.texts);
  if (needles_.empty()) return result;
  ASSIGN_OR_RETURN(
      const std::vector<NeedleScore> needles,
      EvaluateNeedles(OnlyRunner(*runner), needles_, attentions,
                      {.special_ids = tokenizer_.special_ids(), .progress = progress}));
  result.needles = static_cast<int32_t>(needles_.size());
  result.full_hits = static_cast<int32_t>(needles.front().found());
  result.sparse_hits = result.sparse ? static_cast<int32_t>(needles.back().found()) : 0;
  return result;
}

absl::StatusOr<HeldOutResult> HeldOut::MeasureAsTrained(const ModelSpec& spec,
                                                        Parameters& parameters,
                                                        const StepSettings& settings) const {
  ASSIGN_OR_RETURN(
      const std::unique_ptr<TrainingModel> model,
      TrainingModel::Create(spec, parameters,
                            {.sequences = 1, .length = options_.context, .backward = false}));
  HeldOutResult result;
  result.as_trained = true;
  if (spec.is_native_sparse()) result.caches = NativeSparseShares(prefill(), options_.context);
  for (size_t i = 0; i < options_.texts.size(); ++i) {
    BatchLoss sum;
    for (size_t j = begins_[i]; j < begins_[i + 1]; ++j) {
      ASSIGN_OR_RETURN(const BatchLoss loss, LossOf(*model, windows_[j], prefill(), settings));
      sum.Add(loss);
    }
    HeldOutScore score;
    score.text = FileName(options_.texts[i]);
    score.full_perplexity = std::exp(sum.cross_entropy / static_cast<double>(sum.targets));
    result.texts.push_back(score);
    result.tokens += sum.targets;
  }
  result.all = MeanOf(result.texts);
  result.needles = static_cast<int32_t>(needles_.size());
  for (const NeedleWindow& window : needles_) {
    ASSIGN_OR_RETURN(const BatchLoss loss,
                     LossOf(*model, window.tokens, window.answer - 1, settings));
    if (loss.hits == loss.targets) ++result.full_hits;
  }
  return result;
}

}  // namespace eta::training
