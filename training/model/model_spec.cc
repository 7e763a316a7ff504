#include "training/model/model_spec.h"

#include "absl/strings/str_cat.h"

namespace eta::training {

ModelSpec SpecOf(const ModelConfig& config) {
  ModelSpec spec;
  spec.config = config;
  if (config.has_predictor && config.gate == Gate::kSilu) {
    spec.gate = GateKind::kSilu;
    spec.thresholds = ThresholdSource::kPredicted;
  }
  return spec;
}

ModelConfig ConfigOf(const ModelSpec& spec, float beta) {
  ModelConfig config = spec.config;
  config.has_predictor = spec.has_thresholds();
  config.gate = spec.gate == GateKind::kSilu ? Gate::kSilu : Gate::kNone;
  if (spec.has_thresholds()) config.beta = beta;
  config.SetAttentionDefaults();
  return config;
}

absl::Status ValidateSpec(const ModelSpec& spec) {
  if ((spec.gate == GateKind::kNone) == spec.has_thresholds()) {
    return absl::InvalidArgumentError("model: a gate needs thresholds, and thresholds a gate");
  }
  const ModelConfig& config = spec.config;
  if (spec.is_native_sparse() && (spec.has_thresholds() || config.qkv_bias || config.out_bias ||
                                  config.head_norms || !config.layers.empty())) {
    return absl::InvalidArgumentError(
        "model: native sparse attention has no gate, no thresholds, no biases of projections, no "
        "norms of heads and no layers without RoPE");
  }
  if (config.num_experts > 0) {
    return absl::UnimplementedError(
        absl::StrCat("model: num_experts ", config.num_experts, ": experts are not trained"));
  }
  if (config.post_norms || config.activation != Activation::kSilu) {
    return absl::UnimplementedError(
        "model: norms behind attention and feed-forward, and gates with GELU, are not trained");
  }
  if (config.num_full_layers() < config.num_layers) {
    return absl::UnimplementedError(
        absl::StrCat("model: sliding_window ", config.sliding_window,
                     ": windows shorter than a sequence are not trained"));
  }
  if (config.num_kv_heads < 1 || config.num_query_heads % config.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("model: ", config.num_query_heads,
                                                   " query heads are no multiple of ",
                                                   config.num_kv_heads, " KV heads"));
  }
  if (config.head_dim < 2 || config.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: a head of ", config.head_dim, " elements, not an even number"));
  }
  return absl::OkStatus();
}

}  // namespace eta::training
