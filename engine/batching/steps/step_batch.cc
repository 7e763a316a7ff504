#include "engine/batching/steps/step_batch.h"

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "kernels/system/failpoint.h"

namespace eta {
namespace {

constexpr size_t kSlice = Model::max_logit_rows();

}  // namespace

StepBatch::StepBatch(Model& model, const KvCache& cache) : model_(model), cache_(cache) {}

void StepBatch::Clear() {
  tokens_.clear();
  rows_.clear();
  unknown_ = false;
}

void StepBatch::Add(const SequenceRows& rows, std::span<const int32_t> sequence_tokens,
                    std::span<const int32_t> drafts) {
  rows_.push_back(rows);
  if (const auto known = static_cast<size_t>(rows.num_rows) - drafts.size(); known > 0) {
    const auto tokens = sequence_tokens.subspan(static_cast<size_t>(rows.position), known);
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  }
  tokens_.insert(tokens_.end(), drafts.begin(), drafts.end());
}

void StepBatch::AddUnknown(const SequenceRows& rows) {
  rows_.push_back(rows);
  tokens_.insert(tokens_.end(), static_cast<size_t>(rows.num_rows), 0);
  unknown_ = true;
}

absl::Status StepBatch::Run(std::span<RowLogits> logits, ForwardOutputs outputs) {
  RETURN_IF_ERROR(Forward(outputs));
  Draw(logits);
  return Finish();
}

absl::Status StepBatch::Forward(ForwardOutputs outputs) {
  const auto row_layers =
      static_cast<size_t>(num_rows()) * static_cast<size_t>(config().num_layers);
  tokens_attended_.resize(row_layers * static_cast<size_t>(config().num_query_heads));
  tokens_read_.resize(row_layers * static_cast<size_t>(config().num_kv_heads));
  values_read_.resize(tokens_read_.size());
  outputs.tokens_attended = tokens_attended_.data();
  outputs.tokens_read = tokens_read_.data();
  outputs.values_read = values_read_.data();
  expert_rows_.assign(static_cast<size_t>(config().num_layers * config().num_experts), 0);
  outputs.expert_rows = expert_rows_.empty() ? nullptr : expert_rows_.data();
  return model_.Forward({tokens_, rows_}, cache_, outputs);
}

void StepBatch::GiveTokens() {
  if (std::exchange(unknown_, false)) model_.SetTokens(tokens_);
}

void StepBatch::LaunchForward() {
  GiveTokens();
  model_.Launch();
}

void StepBatch::Draw(std::span<RowLogits> logits) {
  GiveTokens();
  logits_ = logits;
  logit_rows_.clear();
  samples_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    logit_rows_.push_back(logits[i].row);
    samples_.push_back(logits[i].sample);
    samples_.back().logits_row = static_cast<int32_t>(i % kSlice);
  }
  for (size_t begin = 0; begin < logits.size(); begin += kSlice) {
    const size_t count = std::min(kSlice, logits.size() - begin);
    model_.ComputeLogits(std::span(logit_rows_).subspan(begin, count));
    model_.Sample(std::span(samples_).subspan(begin, count));
  }
  DownloadLogits(logits);
}

// Few rows want them, so they are computed once more, after the samples of all rows: a download
// ends what a device has recorded.
void StepBatch::DownloadLogits(std::span<const RowLogits> logits) {
  download_rows_.clear();
  std::vector<float*> outs;
  for (const RowLogits& wanted : logits) {
    if (wanted.logits == nullptr) continue;
    download_rows_.push_back(wanted.row);
    outs.push_back(wanted.logits);
  }
  for (size_t begin = 0; begin < outs.size(); begin += kSlice) {
    const size_t count = std::min(kSlice, outs.size() - begin);
    model_.ComputeLogits(std::span(download_rows_).subspan(begin, count));
    for (size_t i = 0; i < count; ++i) {
      model_.DownloadLogits(static_cast<int32_t>(i), outs[begin + i]);
    }
  }
}

absl::Status StepBatch::Finish() {
  absl::Status finished = model_.Finish();
  if (ETA_FAILPOINT(kEngineStepMemory)) finished = absl::ResourceExhaustedError("no memory");
  if (ETA_FAILPOINT(kEngineStepDevice)) finished = absl::InternalError("illegal memory access");
  for (size_t i = 0; i < samples_.size() && finished.ok(); ++i) logits_[i].sample = samples_[i];
  return finished;
}

RowCounts StepBatch::CountsOf(int32_t row) const {
  const int64_t groups = int64_t{row} * config().num_kv_heads;
  return {.tokens_attended = tokens_attended_.data() + int64_t{row} * config().num_query_heads,
          .tokens_read = tokens_read_.data() + groups,
          .values_read = values_read_.data() + groups,
          .stride = num_rows()};
}

AttentionSums StepBatch::Count(const SequenceRows& rows, int32_t i,
                               std::span<LayerDensity> layers) const {
  return CountDecodeRow(config(), geometry(), rows.attention, rows.position + i + 1,
                        CountsOf(rows.row_begin + i), layers);
}

AttentionSums StepBatch::CountPrefill(const SequenceRows& rows, int32_t position) const {
  AttentionSums sums;
  for (int32_t i = std::max(0, position - rows.position); i < rows.num_rows; ++i) {
    sums.Add(CountPrefillRow(config(), rows.position + i + 1, CountsOf(rows.row_begin + i)));
  }
  return sums;
}

bool StepBatch::Prunes(const SequenceRows& rows, int32_t i) const {
  const AttentionOptions& attention = rows.attention;
  const int32_t full_blocks = (rows.position + i + 1) / geometry().block_size;
  return rows.kind == RowKind::kDecode && !attention.admit_all && config().HasFullLayers() &&
         full_blocks > NumAlwaysRead(attention);
}

}  // namespace eta
