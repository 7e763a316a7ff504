// The shape of a model in training: the server's ModelConfig, and what training adds.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/model/model_config.h"
#include "training/attention_params.h"
#include "training/native_sparse_params.h"

namespace eta::training {

// How rows attend. kGated: attention_params.h, with a gate or, of kind kNone, dense. kNativeSparse:
// native_sparse_params.h, a rival; the server does not run it.
enum class AttentionScheme : uint8_t { kGated, kNativeSparse };

// Where a row's thresholds come from. kPredicted: tau = q W^T + b. kStatic: tau = b, one learned
// constant per layer and head (the paper's ablation).
enum class ThresholdSource : uint8_t { kNone, kStatic, kPredicted };

// What is trained. Frozen parameters have no gradients and no moments.
enum class TrainedPart : uint8_t { kAll, kPredictor, kNothing };

struct ModelSpec {
  ModelConfig config;  // its gate and has_predictor are not read here
  AttentionScheme attention = AttentionScheme::kGated;
  GateKind gate = GateKind::kNone;
  ThresholdSource thresholds = ThresholdSource::kNone;  // kNone if and only if the gate is

  bool has_thresholds() const { return thresholds != ThresholdSource::kNone; }
  bool is_native_sparse() const { return attention == AttentionScheme::kNativeSparse; }
  // Whether the server runs it.
  bool is_served() const { return !is_native_sparse() && gate != GateKind::kAdditive; }
  // Rows of the product that makes queries, keys and values: each branch has keys and values of its
  // own.
  int64_t qkv_dim() const {
    return config.query_dim() + 2 * (is_native_sparse() ? kBranches : 1) * config.kv_dim();
  }
  // H, hidden width of the map of a window to a compressed key or value: that of a head. Less would
  // leave the compressed key fewer dimensions than a key has; at twice that, the maps of eta-27m's
  // geometry would hold more weights than all else in its attention.
  int32_t compressor_dim() const { return config.head_dim; }
};

// As a checkpoint's config describes it: gate and predictor, or neither.
ModelSpec SpecOf(const ModelConfig& config);

// The config of `spec`'s checkpoint: model_type "eta" if it has thresholds, beta as given. What the
// family of the original had of biases and norms of heads stays in the config's fields.
ModelConfig ConfigOf(const ModelSpec& spec, float beta);

// INVALID_ARGUMENT for a gate without thresholds or thresholds without a gate, for Native Sparse
// Attention with either, with biases, norms of heads or layers without RoPE, and for shapes of the
// config that training does not do. UNIMPLEMENTED for experts.
absl::Status ValidateSpec(const ModelSpec& spec);

}  // namespace eta::training
