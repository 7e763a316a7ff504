// The index metric of a model, in its folder index_metric.safetensors: what tells which key of a
// block stands out (eta-semantics.md, "Index kinds"). A layer has two tensors of float32:
// `layers.I.metric`, the second moment C [HKV, d, d] of its queries after RoPE, symmetric, and
// `layers.I.centre`, its mean key [HKV, d].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/tensor_reader.h"
#include "engine/model/model_config.h"

namespace eta {

struct IndexMetric {
  std::vector<float> metric;  // [HKV, d, d]
  std::vector<float> centre;  // [HKV, d]
};

std::string IndexMetricName(int32_t layer_idx);
std::string IndexCentreName(int32_t layer_idx);

// FAILED_PRECONDITION naming a tensor that is missing, is not expected, or has another shape or
// type.
absl::Status ValidateIndexMetric(const ModelConfig& config, const TensorReader& file);

// What the file has for a layer. REQUIRES: ValidateIndexMetric. FAILED_PRECONDITION for NaN,
// infinity, and a metric that is not symmetric to the last bit; errors of Read.
absl::StatusOr<IndexMetric> ReadIndexMetric(const ModelConfig& config, const TensorReader& file,
                                            int32_t layer_idx);

}  // namespace eta
