#include "calibration/evaluation/runtime/runner.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/tensor_source.h"

namespace eta {

absl::StatusOr<std::unique_ptr<SequenceRunner>> SequenceRunner::Create(
    const TensorSource& checkpoint, Backend& backend, const RunnerOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                   Model::Load(checkpoint, backend,
                               {.weights = options.weights,
                                .max_rows = options.max_rows,
                                .max_context = options.max_context,
                                .block_size = options.geometry.block_size,
                                .index = options.geometry.index}));
  const int32_t block = options.geometry.block_size;
  // One sequence has blocks for all of its tokens in every group.
  const int64_t num_blocks =
      (int64_t{options.max_context} + block - 1) / block * GroupLayers(model->config()).size();
  if (num_blocks > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError("max_context: the cache would have too many blocks");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<KvCache> cache,
                   KvCache::Create(backend, model->config(), options.geometry,
                                   static_cast<int32_t>(num_blocks)));
  return std::unique_ptr<SequenceRunner>(
      new SequenceRunner(std::move(model), std::move(cache), options));
}

SequenceRunner::SequenceRunner(std::unique_ptr<Model> model, std::unique_ptr<KvCache> cache,
                               const RunnerOptions& options)
    : model_(std::move(model)),
      cache_(std::move(cache)),
      max_context_(options.max_context),
      max_rows_(options.max_rows),
      block_table_(static_cast<size_t>(cache_->num_blocks())),
      row_indices_(static_cast<size_t>(options.max_rows)),
      samples_(static_cast<size_t>(options.max_rows)),
      best_(static_cast<size_t>(options.max_rows)) {
  std::iota(row_indices_.begin(), row_indices_.end(), 0);
  std::iota(block_table_.begin(), block_table_.end(), 0);
  const auto groups = static_cast<size_t>(cache_->groups().size());
  const size_t blocks = block_table_.size() / groups;
  for (size_t group = 1; group < groups; ++group) {
    more_tables_.push_back(std::span(block_table_).subspan(group * blocks, blocks));
  }
}

absl::Status SequenceRunner::CheckHeads(const SequenceSettings& settings) const {
  const size_t heads =
      static_cast<size_t>(config().num_layers) * static_cast<size_t>(config().num_query_heads);
  for (const auto& [field, values] : {std::pair{"thresholds", settings.frozen_thresholds},
                                      std::pair{"z_per_head", settings.head_z}}) {
    if (values.empty() || values.size() == heads) continue;
    return absl::InvalidArgumentError(absl::StrCat(field, ": the model takes ", config().num_layers,
                                                   " layers of ", config().num_query_heads,
                                                   " query heads"));
  }
  return absl::OkStatus();
}

absl::Status SequenceRunner::Begin(const SequenceSettings& settings) {
  RETURN_IF_ERROR(CheckHeads(settings));
  settings_ = settings;
  position_ = 0;
  tempered_ = TemperedKeys(settings.tempered_ids, max_context_);
  return absl::OkStatus();
}

void SequenceRunner::Mark() {
  marked_position_ = position_;
  marked_tempered_ = tempered_;
}

absl::Status SequenceRunner::Return(const SequenceSettings& settings) {
  RETURN_IF_ERROR(CheckHeads(settings));
  settings_ = settings;
  position_ = marked_position_;
  tempered_ = marked_tempered_;
  return absl::OkStatus();
}

absl::Status SequenceRunner::Check(const RunnerStep& step) const {
  if (step.tokens.empty() || step.tokens.size() > static_cast<size_t>(max_rows_)) {
    return absl::OutOfRangeError(absl::StrCat("tokens: a step takes 1 to ", max_rows_, " rows"));
  }
  if (step.tokens.size() > static_cast<size_t>(max_context_ - position_)) {
    return absl::OutOfRangeError(
        absl::StrCat("tokens: the sequence is longer than its ", max_context_, " positions"));
  }
  const auto outside = [this](int32_t id) { return id < 0 || id >= config().vocab_size; };
  if (std::ranges::any_of(step.tokens, outside) || std::ranges::any_of(step.targets, outside)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens: an id lies outside the vocabulary of ", config().vocab_size));
  }
  return absl::OkStatus();
}

void SequenceRunner::SampleLogprobs(const RunnerStep& step) {
  const auto rows = static_cast<int32_t>(step.targets.size());
  for (int32_t begin = 0; begin < rows; begin += Model::max_logit_rows()) {
    const int32_t count = std::min(Model::max_logit_rows(), rows - begin);
    const auto first = static_cast<size_t>(begin);
    const auto samples = std::span(samples_).subspan(first, static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) {
      SampleRow& sample = samples[static_cast<size_t>(i)];
      sample = SampleRow();
      sample.logits_row = i;
      sample.forced = step.targets[first + static_cast<size_t>(i)];
      sample.num_logprobs = step.best.empty() ? 0 : 1;
      sample.top =
          std::span(best_).subspan(first + static_cast<size_t>(i), step.best.empty() ? 0 : 1);
    }
    model_->ComputeLogits(std::span(row_indices_).subspan(first, samples.size()));
    model_->Sample(samples);
  }
}

void SequenceRunner::DownloadLogits(const RunnerStep& step) {
  constexpr auto kMost = static_cast<size_t>(Model::max_logit_rows());
  const auto width = static_cast<size_t>(config().vocab_size);
  for (size_t begin = 0; begin < step.logit_rows.size(); begin += kMost) {
    const size_t count = std::min(kMost, step.logit_rows.size() - begin);
    model_->ComputeLogits(step.logit_rows.subspan(begin, count));
    for (size_t i = 0; i < count; ++i) {
      model_->DownloadLogits(static_cast<int32_t>(i), &step.logits[(begin + i) * width]);
    }
  }
}

absl::Status SequenceRunner::Run(const RunnerStep& step) {
  RETURN_IF_ERROR(Check(step));
  tempered_.Append(step.tokens);
  const auto num_rows = static_cast<int32_t>(step.tokens.size());
  const int32_t block = cache_->geometry().block_size;
  const auto blocks = static_cast<size_t>((position_ + num_rows + block - 1) / block);
  const SequenceRows rows = {.row_begin = 0,
                             .num_rows = num_rows,
                             .position = position_,
                             .kind = step.kind,
                             .rope_theta = settings_.rope_theta,
                             .attention = settings_.attention,
                             .frozen_thresholds = settings_.frozen_thresholds.empty()
                                                      ? nullptr
                                                      : settings_.frozen_thresholds.data(),
                             .head_z = settings_.head_z.empty() ? nullptr : settings_.head_z.data(),
                             .tempered = tempered_.words(),
                             .calibrate = step.calibrate,
                             .block_table = std::span(block_table_).first(blocks),
                             .more_tables = more_tables_};
  const BatchView batch = {.tokens = step.tokens, .sequences = std::span(&rows, 1)};
  RETURN_IF_ERROR(model_->Forward(batch, *cache_, step.outputs));
  SampleLogprobs(step);
  DownloadLogits(step);
  RETURN_IF_ERROR(model_->Finish());
  for (size_t i = 0; i < step.targets.size(); ++i) {
    if (!samples_[i].finite) {
      return absl::InternalError(
          absl::StrCat("logits: not finite at position ", position_ + static_cast<int32_t>(i)));
    }
    step.logprobs[i] = samples_[i].logprob;
    if (!step.best.empty()) step.best[i] = best_[i].id;
  }
  position_ += num_rows;
  return absl::OkStatus();
}

absl::Status SequenceRunner::RunPrompt(std::span<const int32_t> tokens) {
  const auto most = static_cast<size_t>(max_rows_);
  for (; !tokens.empty(); tokens = tokens.subspan(std::min(most, tokens.size()))) {
    RETURN_IF_ERROR(
        Run({.tokens = tokens.first(std::min(most, tokens.size())), .kind = RowKind::kPrefill}));
  }
  return absl::OkStatus();
}

}  // namespace eta
