#include "engine/step_batch.h"

#include <algorithm>

namespace eta {

StepBatch::StepBatch(Model& model, const KvCache& cache) : model_(model), cache_(cache) {}

void StepBatch::Clear() {
  tokens_.clear();
  rows_.clear();
}

void StepBatch::Add(const SequenceRows& rows, std::span<const int32_t> sequence_tokens) {
  rows_.push_back(rows);
  const auto tokens = sequence_tokens.subspan(static_cast<size_t>(rows.position),
                                              static_cast<size_t>(rows.num_rows));
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

absl::Status StepBatch::Run(std::span<RowLogits> logits, ForwardOutputs outputs) {
  const auto row_layers =
      static_cast<size_t>(num_rows()) * static_cast<size_t>(config().num_layers);
  tokens_attended_.resize(row_layers * static_cast<size_t>(config().num_query_heads));
  tokens_read_.resize(row_layers * static_cast<size_t>(config().num_kv_heads));
  outputs.tokens_attended = tokens_attended_.data();
  outputs.tokens_read = tokens_read_.data();
  const absl::Status forward = model_.Forward({tokens_, rows_}, cache_, outputs);
  if (!forward.ok()) return forward;

  constexpr size_t kSlice = Model::max_logit_rows();
  std::vector<int32_t> rows;
  std::vector<SampleRow> samples;
  for (size_t begin = 0; begin < logits.size(); begin += kSlice) {
    const auto slice = logits.subspan(begin, std::min(kSlice, logits.size() - begin));
    rows.clear();
    samples.clear();
    for (const RowLogits& wanted : slice) {
      samples.push_back(wanted.sample);
      samples.back().logits_row = static_cast<int32_t>(rows.size());
      rows.push_back(wanted.row);
    }
    model_.ComputeLogits(rows);
    model_.Sample(samples);
    const absl::Status finished = model_.Finish();
    if (!finished.ok()) return finished;
    for (size_t i = 0; i < slice.size(); ++i) slice[i].sample = samples[i];
  }
  return logits.empty() ? model_.Finish() : absl::OkStatus();
}

void StepBatch::Count(const SequenceRows& rows, int32_t i, AttentionCounter& counter) const {
  const int32_t kv_len = rows.position + i + 1;
  const int32_t full_blocks = kv_len / geometry().block_size;
  const bool screens = !rows.attention.admit_all && full_blocks > rows.attention.pinned_blocks;
  const int32_t screened = screens ? full_blocks : 0;
  for (int32_t layer = 0; layer < config().num_layers; ++layer) {
    const int64_t row = int64_t{layer} * num_rows() + rows.row_begin + i;
    counter.AddLayer(layer, tokens_attended_.data() + row * config().num_query_heads,
                     tokens_read_.data() + row * config().num_kv_heads, kv_len, screened);
  }
  counter.AddRow();
}

}  // namespace eta
