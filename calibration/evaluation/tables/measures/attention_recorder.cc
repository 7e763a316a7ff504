#include "calibration/evaluation/tables/measures/attention_recorder.h"

#include <cmath>
#include <utility>

#include "calibration/evaluation/rivals/host_rows.h"
#include "calibration/evaluation/rivals/kept_blocks.h"

namespace eta {

AttentionRecorder::AttentionRecorder(std::shared_ptr<Backend> backend, const ModelConfig& config,
                                     RowSample sample)
    : ForwardingBackend(std::move(backend)), config_(config), sample_(sample) {
  Begin();
}

void AttentionRecorder::Begin() {
  window_ = {.num_query_heads = config_.num_query_heads,
             .num_kv_heads = config_.num_kv_heads,
             .head_dim = config_.head_dim,
             .gate = config_.gate,
             .beta = config_.beta};
  window_.layers.resize(static_cast<size_t>(config_.num_layers));
  for (RecordedLayer& layer : window_.layers) {
    layer.keys.resize(static_cast<size_t>(config_.num_kv_heads));
    layer.values.resize(static_cast<size_t>(config_.num_kv_heads));
  }
}

void AttentionRecorder::NoteTempered(const SequenceRows& rows) {
  const auto end = static_cast<size_t>(rows.position + rows.num_rows);
  for (size_t t = window_.tempered.size(); t < end; ++t) {
    const bool known = t / 64 < rows.tempered.size();
    window_.tempered.push_back(known ? rows.tempered[t / 64] >> (t % 64) & 1 : 0);
  }
}

void AttentionRecorder::Plan(const BatchView& batch) {
  batch_ = batch;
  chosen_.clear();
  norms_ = 0;
  next_layer_ = 0;
  for (const SequenceRows& rows : batch.sequences) {
    NoteTempered(rows);
    for (int32_t i = 0; i < rows.num_rows; ++i) {
      const int32_t position = rows.position + i;
      if (!sample_.Has(position)) continue;
      chosen_.push_back({rows.row_begin + i, position, rows.attention.offset});
    }
  }
  hidden_norms_.assign(chosen_.size(), 0.0f);
  ForwardingBackend::Plan(batch);
}

// A layer norms its input twice: before attention, and before the FFN.
void AttentionRecorder::RmsNorm(const RmsNormParams& params) {
  const int32_t call = norms_++;
  if (!chosen_.empty() && call < 2 * config_.num_layers && call % 2 == 0) {
    const HostRows hidden(*this, params.x, batch_.num_rows());
    for (size_t i = 0; i < chosen_.size(); ++i) {
      double squares = 0.0;
      for (const float x : hidden.row(chosen_[i].index)) squares += static_cast<double>(x) * x;
      hidden_norms_[i] = static_cast<float>(std::sqrt(squares));
    }
  }
  ForwardingBackend::RmsNorm(params);
}

void AttentionRecorder::AppendKv(const AppendKvParams& params) {
  ForwardingBackend::AppendKv(params);
  RecordedLayer& layer = window_.layers[next_layer_++];
  const auto d = static_cast<size_t>(config_.head_dim);
  if (layer.keys.front().empty()) {  // a sequence begins
    const int64_t centres = config_.kv_dim();
    layer.index_metric = HostCopy(*this, params.kv.index_metric, centres * config_.head_dim);
    layer.index_centre = HostCopy(*this, params.kv.index_centre, centres);
  }
  const auto keep = [&](std::span<const float> row, std::vector<std::vector<float>>& heads) {
    for (std::vector<float>& head : heads) {
      head.resize(head.size() + d);
      RoundToCache(params.geometry.dtype, row.first(d), std::span(head).last(d));
      row = row.subspan(d);
    }
  };
  const HostRows keys(*this, params.k, batch_.num_rows());
  const HostRows values(*this, params.v, batch_.num_rows());
  for (int32_t row = 0; row < batch_.num_rows(); ++row) {
    keep(keys.row(row), layer.keys);
    keep(values.row(row), layer.values);
  }
}

void AttentionRecorder::PrefillAttention(const AttentionParams& params) {
  ForwardingBackend::PrefillAttention(params);
  window_.softmax_scale = params.softmax_scale;
  if (chosen_.empty()) return;
  RecordedLayer& layer = window_.layers[next_layer_ - 1];
  const HostRows queries(*this, params.q, batch_.num_rows());
  const HostRows thresholds(*this, params.thresholds, batch_.num_rows());
  for (size_t i = 0; i < chosen_.size(); ++i) {
    const ChosenRow& chosen = chosen_[i];
    const std::span<const float> q = queries.row(chosen.index);
    RecordedRow& row = layer.rows.emplace_back();
    row.position = chosen.position;
    row.q.assign(q.begin(), q.end());
    for (const float tau : thresholds.row(chosen.index)) {
      row.thresholds.push_back(tau - chosen.offset);
    }
    row.hidden_norm = hidden_norms_[i];
  }
}

}  // namespace eta
