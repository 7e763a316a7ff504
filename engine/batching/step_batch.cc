#include "engine/batching/step_batch.h"

#include <algorithm>
#include <numeric>

#include "kernels/system/failpoint.h"

namespace eta {

StepBatch::StepBatch(Model& model, const KvCache& cache) : model_(model), cache_(cache) {}

void StepBatch::Clear() {
  tokens_.clear();
  rows_.clear();
  unknown_ = false;
}

void StepBatch::Add(const SequenceRows& rows, std::span<const int32_t> sequence_tokens) {
  rows_.push_back(rows);
  const auto tokens = sequence_tokens.subspan(static_cast<size_t>(rows.position),
                                              static_cast<size_t>(rows.num_rows));
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

void StepBatch::AddUnknown(const SequenceRows& rows) {
  rows_.push_back(rows);
  tokens_.insert(tokens_.end(), static_cast<size_t>(rows.num_rows), 0);
  unknown_ = true;
}

absl::Status StepBatch::Run(std::span<RowLogits> logits, ForwardOutputs outputs) {
  const absl::Status forward = Forward(outputs);
  if (!forward.ok()) return forward;
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
  return model_.Forward({tokens_, rows_}, cache_, outputs);
}

void StepBatch::Draw(std::span<RowLogits> logits) {
  if (unknown_) model_.SetTokens(tokens_);
  logits_ = logits;
  logit_rows_.clear();
  samples_.clear();
  constexpr size_t kSlice = Model::max_logit_rows();
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
}

absl::Status StepBatch::Finish() {
  absl::Status finished = model_.Finish();
  if (ETA_FAILPOINT(kEngineStepMemory)) finished = absl::ResourceExhaustedError("no memory");
  if (ETA_FAILPOINT(kEngineStepDevice)) finished = absl::InternalError("illegal memory access");
  for (size_t i = 0; i < samples_.size() && finished.ok(); ++i) logits_[i].sample = samples_[i];
  return finished;
}

RowReads StepBatch::Count(const SequenceRows& rows, int32_t i, AttentionCounter& counter) const {
  const int32_t kv_len = rows.position + i + 1;
  const Screening screening = Screened(rows, i);
  RowReads reads;
  for (int32_t layer = 0; layer < config().num_layers; ++layer) {
    const int64_t row = int64_t{layer} * num_rows() + rows.row_begin + i;
    const int64_t groups = row * config().num_kv_heads;
    const RowCounts counts = {
        .tokens_attended = tokens_attended_.data() + row * config().num_query_heads,
        .tokens_read = tokens_read_.data() + groups,
        .values_read = values_read_.data() + groups};
    const RowReads layer_reads = counter.AddLayer(layer, counts, kv_len, screening);
    reads.keys_attended += layer_reads.keys_attended;
    reads.keys_read += layer_reads.keys_read;
    reads.values_read += layer_reads.values_read;
  }
  counter.AddRow();
  return reads;
}

PrefillReads StepBatch::CountPrefill(const SequenceRows& rows, int32_t position) const {
  const int64_t layers = config().num_layers;
  const int64_t heads = config().num_query_heads;
  PrefillReads reads;
  for (int32_t i = std::max(0, position - rows.position); i < rows.num_rows; ++i) {
    int64_t attended = 0;
    for (int64_t layer = 0; layer < layers; ++layer) {
      const int64_t row = layer * num_rows() + rows.row_begin + i;
      const int32_t* counts = tokens_attended_.data() + row * heads;
      attended = std::accumulate(counts, counts + heads, attended);
    }
    const int64_t eligible = (int64_t{rows.position} + i + 1) * layers * heads;
    ++reads.rows;
    reads.keys_attended += attended;
    reads.keys_eligible += eligible;
    reads.density += static_cast<double>(attended) / static_cast<double>(eligible);
  }
  return reads;
}

Screening StepBatch::Screened(const SequenceRows& rows, int32_t i) const {
  const AttentionOptions& options = rows.attention;
  const int32_t kv_len = rows.position + i + 1;
  const int32_t full_blocks = kv_len / geometry().block_size;
  // At most 1024 each.
  const int32_t always = options.sink_blocks + options.pinned_blocks;
  if (options.admit_all || full_blocks <= always) return {};
  const int32_t others = full_blocks - always;
  return {.records = full_blocks,
          .keys = options.relative ? kv_len - others * geometry().block_size : 0};
}

bool StepBatch::Prunes(const SequenceRows& rows, int32_t i) const {
  const AttentionOptions& attention = rows.attention;
  const int32_t full_blocks = (rows.position + i + 1) / geometry().block_size;
  return rows.kind == RowKind::kDecode && !attention.admit_all &&
         full_blocks > int64_t{attention.pinned_blocks} + attention.sink_blocks;
}

}  // namespace eta
