// Measures index_metric.safetensors on text (eta-semantics.md, "Index kinds"): per layer and KV
// head the second moment of the post-RoPE queries of its query heads, and the mean post-RoPE key.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/model/model_config.h"
#include "kernels/backends/make_backend.h"
#include "kernels/forwarding_backend.h"
#include "kernels/params/layer.h"

namespace eta {

// Sums in double over every row that runs through it, in the order of the rows. Around backends in
// host memory that do not defer: reference and cpu.
class MomentBackend : public ForwardingBackend {
 public:
  MomentBackend(std::shared_ptr<Backend> backend, const ModelConfig& config);

  void Plan(const BatchView& batch) override;
  void AppendKv(const AppendKvParams& params) override;
  void PredictThresholds(const ThresholdParams& params) override;

  int64_t rows() const { return rows_; }
  // sum of q q^T over rows and the KV head's query heads, over their number; symmetric to the last
  // bit; [HKV, d, d].
  std::vector<float> Metric(int32_t layer) const;
  std::vector<float> Centre(int32_t layer) const;  // mean key [HKV, d]

 private:
  struct Layer {
    std::vector<double> moments;  // [HKV, d, d], the lower triangles
    std::vector<double> keys;     // [HKV, d]
  };

  int32_t kv_heads_;
  int32_t group_;
  int32_t head_dim_;
  std::vector<Layer> layers_;
  int32_t step_rows_ = 0;
  size_t next_layer_ = 0;  // of AppendKv
  int64_t rows_ = 0;
};

// Writes tensors `layers.I.metric` and `layers.I.centre`, float32, atomically. FailedPrecondition
// if no row was seen or a sum is not finite.
absl::Status WriteIndexMetric(const MomentBackend& moments, const ModelConfig& config,
                              const std::string& path);

struct IndexMetricRun {
  BackendOptions backend;                                     // reference or cpu
  std::function<void(int64_t done, int64_t total)> progress;  // windows; may be empty
};

// Runs windows, [context + 1] tokens each, through the model as prompts and writes what they say.
// Errors of the backend, the model and WriteIndexMetric.
absl::Status MeasureIndexMetric(const TensorSource& model,
                                std::span<const std::vector<int32_t>> windows,
                                const IndexMetricRun& run, const std::string& path);

}  // namespace eta
