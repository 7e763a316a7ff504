#include "training/model/layer_weights.h"

#include <string>

namespace eta::training {

LayerWeights WeightsOf(const ModelSpec& spec, const Parameters& parameters, int32_t layer) {
  const ModelConfig& c = spec.config;
  const std::string prefix = LayerPrefix(layer);
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  return {
      .attention_norm = parameters.Value(prefix + "input_layernorm.weight"),
      .qkv = parameters.Weight(attention + "q_proj.weight", c.query_dim() + 2 * c.kv_dim(),
                               c.model_dim),
      .qkv_bias = parameters.Value(attention + "q_proj.bias"),
      .query_norm = parameters.Value(attention + "q_norm.weight"),
      .key_norm = parameters.Value(attention + "k_norm.weight"),
      .threshold_weight = parameters.Value(attention + "tau_proj.weight"),
      .threshold_bias = parameters.Value(attention + "tau_proj.bias"),
      .out_projection = parameters.Weight(attention + "o_proj.weight", c.model_dim, c.query_dim()),
      .out_bias = parameters.Value(attention + "o_proj.bias"),
      .ffn_norm = parameters.Value(prefix + "post_attention_layernorm.weight"),
      .gate_up = parameters.Weight(mlp + "gate_proj.weight", 2 * int64_t{c.ffn_dim}, c.model_dim),
      .down = parameters.Weight(mlp + "down_proj.weight", c.model_dim, c.ffn_dim),
  };
}

LayerGradients GradientsOf(const Parameters& parameters, int32_t layer) {
  const std::string prefix = LayerPrefix(layer);
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  return {
      .attention_norm = parameters.Gradient(prefix + "input_layernorm.weight"),
      .qkv = parameters.Gradient(attention + "q_proj.weight"),
      .qkv_bias = parameters.Gradient(attention + "q_proj.bias"),
      .query_norm = parameters.Gradient(attention + "q_norm.weight"),
      .key_norm = parameters.Gradient(attention + "k_norm.weight"),
      .threshold_weight = parameters.Gradient(attention + "tau_proj.weight"),
      .threshold_bias = parameters.Gradient(attention + "tau_proj.bias"),
      .out_projection = parameters.Gradient(attention + "o_proj.weight"),
      .out_bias = parameters.Gradient(attention + "o_proj.bias"),
      .ffn_norm = parameters.Gradient(prefix + "post_attention_layernorm.weight"),
      .gate_up = parameters.Gradient(mlp + "gate_proj.weight"),
      .down = parameters.Gradient(mlp + "down_proj.weight"),
  };
}

}  // namespace eta::training
