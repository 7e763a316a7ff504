#include "training/model/layer_weights.h"

#include <string>

namespace eta::training {
namespace {

CompressorWeights CompressorOf(const ModelSpec& spec, const Parameters& parameters,
                               const std::string& map) {
  const int64_t hidden = spec.compressor_dim();
  const int64_t head_dim = spec.config.head_dim;
  return {.gate_up = parameters.Weight(map + "gate_up_proj.weight", 2 * hidden,
                                       kCompressedWindow * head_dim),
          .bias = parameters.Value(map + "gate_up_proj.bias"),
          .down = parameters.Weight(map + "down_proj.weight", head_dim, hidden)};
}

CompressorGradients CompressorGradientsOf(const Parameters& parameters, const std::string& map) {
  return {.gate_up = parameters.Gradient(map + "gate_up_proj.weight"),
          .bias = parameters.Gradient(map + "gate_up_proj.bias"),
          .down = parameters.Gradient(map + "down_proj.weight")};
}

NativeSparseWeights NativeSparseOf(const ModelSpec& spec, const Parameters& parameters,
                                   const std::string& attention) {
  const ModelConfig& c = spec.config;
  return {.keys = CompressorOf(spec, parameters, attention + "k_compressor."),
          .values = CompressorOf(spec, parameters, attention + "v_compressor."),
          .gates = parameters.Weight(attention + "branch_gate_proj.weight",
                                     int64_t{kBranches} * c.num_query_heads, c.model_dim),
          .gate_bias = parameters.Value(attention + "branch_gate_proj.bias")};
}

NativeSparseGradients NativeSparseGradientsOf(const Parameters& parameters,
                                              const std::string& attention) {
  return {.keys = CompressorGradientsOf(parameters, attention + "k_compressor."),
          .values = CompressorGradientsOf(parameters, attention + "v_compressor."),
          .gates = parameters.Gradient(attention + "branch_gate_proj.weight"),
          .gate_bias = parameters.Gradient(attention + "branch_gate_proj.bias")};
}

}  // namespace

LayerWeights WeightsOf(const ModelSpec& spec, const Parameters& parameters, int32_t layer) {
  const ModelConfig& c = spec.config;
  const std::string prefix = LayerPrefix(layer);
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  return {
      .attention_norm = parameters.Value(prefix + "input_layernorm.weight"),
      .qkv = parameters.Weight(attention + "q_proj.weight", spec.qkv_dim(), c.model_dim),
      .qkv_bias = parameters.Value(attention + "q_proj.bias"),
      .query_norm = parameters.Value(attention + "q_norm.weight"),
      .key_norm = parameters.Value(attention + "k_norm.weight"),
      .threshold_weight = parameters.Value(attention + "tau_proj.weight"),
      .threshold_bias = parameters.Value(attention + "tau_proj.bias"),
      .native_sparse = NativeSparseOf(spec, parameters, attention),
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
      .native_sparse = NativeSparseGradientsOf(parameters, attention),
      .out_projection = parameters.Gradient(attention + "o_proj.weight"),
      .out_bias = parameters.Gradient(attention + "o_proj.bias"),
      .ffn_norm = parameters.Gradient(prefix + "post_attention_layernorm.weight"),
      .gate_up = parameters.Gradient(mlp + "gate_proj.weight"),
      .down = parameters.Gradient(mlp + "down_proj.weight"),
  };
}

}  // namespace eta::training
