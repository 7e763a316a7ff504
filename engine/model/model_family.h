// What differs from one family of checkpoints to another. This table is the only place that tells
// families apart: model_config.cc reads config.json by it, and from then on the model's shape
// (ModelConfig) says what a layer computes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/params/layer.h"

namespace eta {

// Which projections of attention add a bias.
enum class BiasRule : uint8_t {
  kNone,        // none; attention_bias: true is refused
  kQkv,         // q, k and v; config.json does not say
  kConfigured,  // q, k, v and o, if attention_bias is true
  kUnlessOff,   // q, k, v and o, unless attention_bias is false
};

// Whether some layers see the newest keys alone.
enum class WindowRule : uint8_t {
  kNone,        // no layer; sliding_window is refused
  kAllLayers,   // all layers, unless sliding_window is null
  kConfigured,  // if use_sliding_window is true: layer_types, else those from max_window_layers on
  kAllIfAsked,  // all layers, if use_sliding_window is true
  kUnrotated,   // if use_sliding_window is true: layer_types, else those without RoPE
  kPeriod,      // layer_types, else all but every so many-th: sliding_window_pattern
};

// What transformers takes where config.json names none of a family with experts.
struct ExpertDefaults {
  int32_t count = 0;  // 0: the family has no experts
  int32_t per_token = 0;
  int32_t ffn_dim = 0;      // 0: intermediate_size is their width
  bool normalised = false;  // whatever norm_topk_prob says
  bool biases = false;      // routers and experts add biases
};

// What transformers takes where config.json leaves the shape to it; 0: the file must say.
struct ShapeDefaults {
  int32_t vocab_size = 0;
  int32_t num_query_heads = 0;
  int32_t max_positions = 0;  // max_position_embeddings
  double norm_eps = 0.0;      // rms_norm_eps
};

// A family says what it has beyond the plainest one.
struct ModelFamily {
  std::string_view model_type;  // of config.json
  // q W^T + b of tau_proj are a row's thresholds, and eta_gate tempers its logits.
  bool has_predictor = false;
  BiasRule biases = BiasRule::kNone;
  bool head_norms = false;  // q_norm and k_norm: RMSNorm of every head of q and k, before RoPE
  WindowRule window = WindowRule::kNone;
  // What transformers takes where config.json names none. 0: hidden_size / num_attention_heads.
  int32_t head_dim = 0;
  // -1: as many as query heads.
  int32_t num_kv_heads = -1;
  int32_t sliding_window = 0;     // 0: none
  int32_t max_window_layers = 0;  // with kConfigured
  int32_t window_period = 0;      // with kPeriod; the last layer of a period is full
  float rope_theta = 1e4f;
  bool tied = false;  // the head is the embedding
  // Every so many-th layer has no RoPE, unless no_rope_layers or no_rope_layer_interval say
  // otherwise. 0: all layers have it, and neither field is read.
  int32_t unrotated_interval = 0;
  ExpertDefaults experts = {};
  ShapeDefaults shape = {};
  Activation activation = Activation::kSilu;
  bool sinks = false;  // every head has a learned sink
  // transformers scales RoPE of a file that says nothing of it: such a file is refused.
  bool names_scaling = false;
  // Attention and feed-forward are normed before they are added, too.
  bool post_norms = false;
  bool unit_norms = false;        // weights of norms are stored less 1
  bool scales_embedding = false;  // by the root of hidden_size
  double query_scalar = 0.0;      // query_pre_attn_scalar; 0: not read, head_dim
  float local_rope_theta = 0.0f;  // of layers with a window, unscaled; 0: as the other layers
  // max_position_embeddings is the length that a linear scaling stretches to, not from.
  bool scaled_positions = false;
};

std::span<const ModelFamily> ModelFamilies();

// Null for an unknown type.
const ModelFamily* FindModelFamily(std::string_view model_type);

// "eta, llama, ... and gemma3_text"
std::string KnownModelTypes();

}  // namespace eta
