// The shape of a model in training: the server's ModelConfig, and what training adds.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/model/model_config.h"
#include "training/attention_params.h"

namespace eta::training {

// Where a row's thresholds come from. kPredicted: tau = q W^T + b. kStatic: tau = b, one learned
// constant per layer and head (the paper's ablation).
enum class ThresholdSource : uint8_t { kNone, kStatic, kPredicted };

// What is trained. Frozen parameters have no gradients and no moments.
enum class TrainedPart : uint8_t { kAll, kPredictor, kNothing };

struct ModelSpec {
  ModelConfig config;  // its gate and has_predictor are not read here
  GateKind gate = GateKind::kNone;
  ThresholdSource thresholds = ThresholdSource::kNone;  // kNone if and only if the gate is

  bool has_thresholds() const { return thresholds != ThresholdSource::kNone; }
};

// As a checkpoint's config describes it: gate and predictor, or neither.
ModelSpec SpecOf(const ModelConfig& config);

// The config of `spec`'s checkpoint: model_type "eta" if it has thresholds, beta as given. What the
// family of the original had of biases and norms of heads stays in the config's fields.
ModelConfig ConfigOf(const ModelSpec& spec, float beta);

// INVALID_ARGUMENT for a gate without thresholds or thresholds without a gate, and for shapes of
// the config that training does not do.
absl::Status ValidateSpec(const ModelSpec& spec);

}  // namespace eta::training
