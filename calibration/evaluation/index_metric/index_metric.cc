#include "calibration/evaluation/index_metric/index_metric.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/evaluation/runtime/runner.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/model/rope/rope_base.h"
#include "engine/model/weights/index_metric.h"

namespace eta {
namespace {

// Runs a window through the model as a prompt.
absl::Status Feed(SequenceRunner& runner, std::span<const int32_t> tokens) {
  RETURN_IF_ERROR(runner.Begin(
      {.attention = {.uniform_floor = false, .admit_all = true},
       .rope_theta = RopeTheta(runner.config(), static_cast<int64_t>(tokens.size()))}));
  return runner.RunPrompt(tokens);
}

}  // namespace

MomentBackend::MomentBackend(std::shared_ptr<Backend> backend, const ModelConfig& config)
    : ForwardingBackend(std::move(backend)),
      kv_heads_(config.num_kv_heads),
      group_(config.group_size()),
      head_dim_(config.head_dim),
      layers_(static_cast<size_t>(config.num_layers)) {
  const auto d = static_cast<size_t>(head_dim_);
  for (Layer& layer : layers_) {
    layer.moments.resize(static_cast<size_t>(kv_heads_) * d * d);
    layer.keys.resize(static_cast<size_t>(kv_heads_) * d);
  }
}

void MomentBackend::Plan(const BatchView& batch) {
  step_rows_ = batch.num_rows();
  next_layer_ = 0;
  rows_ += step_rows_;
  ForwardingBackend::Plan(batch);
}

void MomentBackend::AppendKv(const AppendKvParams& params) {
  ForwardingBackend::AppendKv(params);
  Layer& layer = layers_[next_layer_++];
  for (int32_t row = 0; row < step_rows_; ++row) {
    const float* key = params.k.row(row);
    for (size_t i = 0; i < layer.keys.size(); ++i) layer.keys[i] += key[i];
  }
}

void MomentBackend::PredictThresholds(const ThresholdParams& params) {
  ForwardingBackend::PredictThresholds(params);
  const auto d = static_cast<size_t>(head_dim_);
  Layer& layer = layers_[static_cast<size_t>(params.layer)];
  for (int32_t row = 0; row < step_rows_; ++row) {
    for (int32_t h = 0; h < kv_heads_ * group_; ++h) {
      const float* q = params.q.row(row) + static_cast<size_t>(h) * d;
      double* moment = layer.moments.data() + static_cast<size_t>(h / group_) * d * d;
      for (size_t i = 0; i < d; ++i) {
        const double along = q[i];
        for (size_t j = 0; j <= i; ++j) moment[i * d + j] += along * q[j];
      }
    }
  }
}

std::vector<float> MomentBackend::Metric(int32_t layer) const {
  const std::vector<double>& moments = layers_[static_cast<size_t>(layer)].moments;
  const auto d = static_cast<size_t>(head_dim_);
  const double count = static_cast<double>(rows_) * group_;
  std::vector<float> metric(moments.size());
  for (size_t head = 0; head < moments.size(); head += d * d) {
    for (size_t i = 0; i < d; ++i) {
      for (size_t j = 0; j <= i; ++j) {
        const auto mean = static_cast<float>(moments[head + i * d + j] / count);
        metric[head + i * d + j] = mean;
        metric[head + j * d + i] = mean;
      }
    }
  }
  return metric;
}

std::vector<float> MomentBackend::Centre(int32_t layer) const {
  std::vector<float> centre;
  for (const double sum : layers_[static_cast<size_t>(layer)].keys) {
    centre.push_back(static_cast<float>(sum / static_cast<double>(rows_)));
  }
  return centre;
}

absl::Status WriteIndexMetric(const MomentBackend& moments, const ModelConfig& config,
                              const std::string& path) {
  if (moments.rows() == 0) return absl::FailedPreconditionError("text: no token was seen");
  std::vector<std::vector<float>> values;  // two per layer
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    values.push_back(moments.Metric(layer));
    values.push_back(moments.Centre(layer));
  }
  std::map<std::string, TensorToWrite> tensors;
  const int64_t kv_heads = config.num_kv_heads;
  const int64_t d = config.head_dim;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto finite = [](float value) { return std::isfinite(value); };
    if (!std::ranges::all_of(values[i], finite)) {
      return absl::FailedPreconditionError(
          absl::StrCat("layers.", i / 2, ": queries or keys are not finite"));
    }
    const bool metric = i % 2 == 0;
    const std::vector<int64_t> shape =
        metric ? std::vector<int64_t>{kv_heads, d, d} : std::vector<int64_t>{kv_heads, d};
    const auto layer = static_cast<int32_t>(i / 2);
    tensors[metric ? IndexMetricName(layer) : IndexCentreName(layer)] = {
        DType::kFloat32, shape, std::as_bytes(std::span(values[i]))};
  }
  return WriteSafetensors(path, {{"rows", absl::StrCat(moments.rows())}}, tensors);
}

absl::Status MeasureIndexMetric(const TensorSource& model,
                                std::span<const std::vector<int32_t>> windows,
                                const IndexMetricRun& run, const std::string& path) {
  ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(model.config_json()));
  ASSIGN_OR_RETURN(std::unique_ptr<Backend> made, MakeBackend(run.backend));
  MomentBackend moments(std::shared_ptr<Backend>(std::move(made)), config);
  KvGeometry geometry = MakeKvGeometry(config, DType::kFloat32);
  geometry.index = IndexKind::kMoment;  // no record is read
  geometry.index_dtype = DType::kFloat16;
  size_t longest = 1;
  for (const auto& window : windows) longest = std::max(longest, window.size());
  ASSIGN_OR_RETURN(
      const std::unique_ptr<SequenceRunner> runner,
      SequenceRunner::Create(model, moments,
                             {.geometry = geometry, .max_context = static_cast<int32_t>(longest)}));
  int64_t done = 0;
  for (const std::vector<int32_t>& window : windows) {
    RETURN_IF_ERROR(Feed(*runner, std::span(window).first(window.size() - 1)));
    if (run.progress) run.progress(++done, static_cast<int64_t>(windows.size()));
  }
  return WriteIndexMetric(moments, config, path);
}

}  // namespace eta
