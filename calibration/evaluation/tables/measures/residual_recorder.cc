#include "calibration/evaluation/tables/measures/residual_recorder.h"

#include <utility>

#include "calibration/evaluation/rivals/host_rows.h"

namespace eta {

ResidualRecorder::ResidualRecorder(std::shared_ptr<Backend> backend, const ModelConfig& config,
                                   RowSample sample)
    : ForwardingBackend(std::move(backend)), num_layers_(config.num_layers), sample_(sample) {
  Begin();
}

void ResidualRecorder::Begin() {
  recorded_ = {};
  recorded_.layers.resize(static_cast<size_t>(num_layers_));
}

void ResidualRecorder::Plan(const BatchView& batch) {
  chosen_.clear();
  norms_ = 0;
  for (const SequenceRows& rows : batch.sequences) {
    for (int32_t i = 0; i < rows.num_rows; ++i) {
      if (!sample_.Has(rows.position + i)) continue;
      chosen_.push_back({rows.row_begin + i, recorded_.positions.size()});
      recorded_.positions.push_back(rows.position + i);
      recorded_.logits.emplace_back();
      for (auto& layer : recorded_.layers) layer.emplace_back();
    }
  }
  ForwardingBackend::Plan(batch);
}

void ResidualRecorder::Keep(const TensorView& residual, size_t layer) {
  if (chosen_.empty()) return;
  const HostRows rows(*this, residual, chosen_.back().index + 1);
  for (const ChosenRow& row : chosen_) {
    const std::span<const float> x = rows.row(row.index);
    recorded_.layers[layer][row.recorded].assign(x.begin(), x.end());
  }
}

// The output of a layer is the first input that the next layer norms. That of the last layer is the
// input of the final norm, in as many calls as there are blocks of logits. A norm that adds is of
// what a layer adds.
void ResidualRecorder::RmsNorm(const RmsNormParams& params) {
  if (params.add) return ForwardingBackend::RmsNorm(params);
  const int32_t call = norms_++;
  if (call >= 2 * num_layers_) {
    Keep(params.x, static_cast<size_t>(num_layers_) - 1);
    logit_rows_.assign(params.rows.begin(), params.rows.end());
  } else if (call > 0 && call % 2 == 0) {
    Keep(params.x, static_cast<size_t>(call / 2) - 1);
  }
  ForwardingBackend::RmsNorm(params);
}

void ResidualRecorder::Sample(const SampleParams& params) {
  for (const SampleRow& sample : params.rows) {
    const int32_t index = logit_rows_[static_cast<size_t>(sample.logits_row)];
    for (const ChosenRow& row : chosen_) {
      if (row.index != index) continue;
      recorded_.logits[row.recorded] =
          HostCopy<float>(*this, params.logits.row(sample.logits_row), params.logits.cols);
    }
  }
  ForwardingBackend::Sample(params);
}

}  // namespace eta
