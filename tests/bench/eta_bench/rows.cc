#include "tests/bench/eta_bench/rows.h"

#include <algorithm>
#include <cmath>

#include "tests/bench/eta_bench/eta_bench.h"

namespace eta::bench {

DecodeRows::DecodeRows(Backend& backend, const KvGeometry& geometry,
                       const AttentionOptions& options, int32_t num_query_heads,
                       std::span<const SequencePlace> sequences, std::span<const float> queries)
    : backend_(backend),
      geometry_(geometry),
      num_query_heads_(num_query_heads),
      softmax_scale_(1.0f / std::sqrt(static_cast<float>(geometry.head_dim))),
      gate_(options.relative ? Gate::kNone : Gate::kSilu),
      tokens_(sequences.size(), 0),
      padded_rows_(backend.PaddedRows(static_cast<int64_t>(sequences.size()))) {
  int32_t capacity = 1;
  for (const SequencePlace& sequence : sequences) {
    SequenceRows& row = rows_.emplace_back();
    row.row_begin = static_cast<int32_t>(rows_.size()) - 1;
    row.num_rows = 1;
    row.position = sequence.num_tokens - 1;
    row.kind = RowKind::kDecode;
    row.rope_theta = 10000.0f;
    row.attention = options;
    row.block_table = sequence.block_table.first(
        static_cast<size_t>((sequence.num_tokens + geometry.block_size - 1) / geometry.block_size));
    capacity = std::max(capacity, sequence.num_tokens / geometry.block_size);
  }
  const auto padded = static_cast<size_t>(padded_rows_);
  const auto heads = static_cast<size_t>(num_query_heads);
  const auto d = static_cast<size_t>(geometry.head_dim);
  const size_t lists = padded * static_cast<size_t>(geometry.num_kv_heads);
  const size_t list_bytes = lists * static_cast<size_t>(capacity) * sizeof(uint32_t);
  std::vector<float> padded_queries(queries.begin(), queries.end());
  padded_queries.resize(padded * heads * d);
  queries_ = UploadFloats(backend, padded_queries);
  thresholds_ = UploadFloats(backend, std::vector<float>(padded * heads));
  out_ = Require(backend.Allocate(padded * heads * d * sizeof(float)));
  blocks_ = Require(backend.Allocate(list_bytes));
  heads_ = Require(backend.Allocate(list_bytes));
  counts_ = Require(backend.Allocate(lists * sizeof(int32_t)));
  rescued_ = Require(backend.Allocate(padded * heads * sizeof(int32_t)));
  selection_ = {blocks_->as<uint32_t>(),
                heads_->as<uint32_t>(),
                counts_->as<int32_t>(),
                capacity,
                padded_rows_,
                rescued_->as<int32_t>()};
  tokens_attended_.resize(sequences.size() * heads);
  tokens_read_.resize(sequences.size() * static_cast<size_t>(geometry.num_kv_heads));
  values_read_.resize(tokens_read_.size());
}

void DecodeRows::SetThresholds(std::span<const float> thresholds) {
  backend_.Upload(thresholds_->data(), thresholds.data(), thresholds.size_bytes());
}

void DecodeRows::SetRelative(float c) {
  for (SequenceRows& row : rows_) row.attention.relative_c = c;
}

void DecodeRows::SetAdmitAll(bool admit_all) {
  for (SequenceRows& row : rows_) row.attention.admit_all = admit_all;
}

TensorView DecodeRows::View(const Buffer& buffer, int64_t cols, DType dtype) const {
  return {buffer.as<float>(), padded_rows_, cols, cols, dtype};
}

void DecodeRows::Plan() {
  backend_.Plan({tokens_, rows_});
}

void DecodeRows::Select(const KvLayerView& layer) {
  const int64_t width = int64_t{num_query_heads_} * geometry_.head_dim;
  backend_.SelectBlocks({0,
                         View(*queries_, width, DType::kFloat32),
                         View(*thresholds_, num_query_heads_, DType::kFloat32),
                         num_query_heads_,
                         geometry_,
                         layer,
                         softmax_scale_,
                         selection_,
                         {tokens_attended_.data(), tokens_read_.data(), values_read_.data()}});
}

void DecodeRows::Attend(const KvLayerView& layer) {
  const int64_t width = int64_t{num_query_heads_} * geometry_.head_dim;
  backend_.DecodeAttention({View(*queries_, width, DType::kFloat32),
                            View(*thresholds_, num_query_heads_, DType::kFloat32), num_query_heads_,
                            geometry_, layer, softmax_scale_, gate_, kGateBeta, selection_,
                            View(*out_, width, backend_.activation_dtype()), values_read_.data()});
}

void DecodeRows::RunOnce(const KvLayerView& layer) {
  Plan();
  Select(layer);
  Attend(layer);
  RequireOk(backend_.Finish());
}

std::vector<float> DecodeRows::Output() {
  const size_t count = rows_.size() * static_cast<size_t>(num_query_heads_) *
                       static_cast<size_t>(geometry_.head_dim);
  return DownloadFloats(backend_, *out_, backend_.activation_dtype(), count);
}

}  // namespace eta::bench
