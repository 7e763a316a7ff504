// config.json of a checkpoint (eta-semantics.md, "Model"): the model's shape, checked field by
// field.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/safetensors_header.h"
#include "kernels/batch.h"
#include "kernels/kv_geometry.h"
#include "kernels/params/layer.h"
#include "kernels/rope_scaling.h"

namespace eta {

// Bounds in brackets. Names of config.json, where they differ, after the arrow. What an absent
// field stands for may depend on the family (model_family.h).
// "moment" or "outlier", as everywhere that people read.
constexpr std::string_view Name(IndexKind index) {
  return index == IndexKind::kOutlier ? "outlier" : "moment";
}

// What the attention of one layer does unlike that of another.
struct LayerKind {
  bool rotates = true;  // q and k turn by their positions; false: they stay as they are (NoPE)
  // W [0, 2^24]: the row at position t sees keys max(0, t - W + 1) .. t alone, and attends to all
  // of them. 0: a full layer, which sees every key and may read them sparsely.
  int32_t window = 0;
  bool local_rope = false;  // turns by local_rope_theta, unscaled

  bool operator==(const LayerKind&) const = default;
};

struct ModelConfig {
  static constexpr int32_t kMaxTrainedContext = 1 << 24;
  static constexpr int32_t kMaxExperts = 1024;
  static constexpr int32_t kMaxExpertsPerToken = 64;
  // Of all layers together: each has three tensors, and a file at most 100000.
  static constexpr int32_t kMaxExpertsOfModel = 32768;

  int32_t vocab_size = 0;       // [1, 2^20]
  int32_t model_dim = 0;        // [1, 65536] <- hidden_size
  int32_t ffn_dim = 0;          // [1, 262144] <- intermediate_size
  int32_t num_layers = 0;       // [1, 512] <- num_hidden_layers
  int32_t num_query_heads = 0;  // [1, 1024] <- num_attention_heads
  int32_t num_kv_heads = 0;     // divides num_query_heads, at most 32 query heads each
                                // <- num_key_value_heads
  int32_t head_dim = 0;         // even, [2, 256]
  float norm_eps = 0.0f;        // [1e-12, 0.1] <- rms_norm_eps
  float rope_theta = 0.0f;      // [1, 1e12]
  // Absent: none. Factors [1, 1e4], those of llama3's frequencies [1e-3, 1e4] and low below high,
  // original_max_position_embeddings [1, 2^24]; yarn's: rope_config.cc.
  RopeScaling rope_scaling;
  // [1, 2^24] trained length in tokens <- max_position_embeddings; with linear scaling this times
  // the factor, with yarn at least original_max_position_embeddings times the factor.
  int32_t max_context = 0;
  int32_t sliding_window = 0;  // [1, 2^24] of the layers that have a window; 0: none has
  bool qkv_bias = false;       // q_proj, k_proj and v_proj add a bias
  bool out_bias = false;       // o_proj does
  bool head_norms = false;     // every head of q and k is normed before RoPE
  bool sinks = false;          // every head has a learned sink (eta-semantics.md, "Learned sinks")
  bool post_norms = false;     // attention and feed-forward are normed before they are added, too
  bool unit_norms = false;     // the weights of norms are stored less 1
  Activation activation = Activation::kSilu;  // of the feed-forward's gate <- hidden_act
  float embedding_scale = 1.0f;               // (0, 256]; what the embedding is multiplied by
  // s of attention is its root's inverse; [1, 1e6] <- query_pre_attn_scalar. 0: head_dim
  double query_scalar = 0.0;
  float local_rope_theta = 0.0f;  // [1, 1e12] of layers with local_rope <- rope_local_base_freq
  // [num_layers]; empty: all layers are LayerKind() <- no_rope_layers, no_rope_layer_interval,
  // layer_types, max_window_layers, sliding_window_pattern
  std::vector<LayerKind> layers;
  bool tie_word_embeddings = false;
  // Experts (eta-semantics.md, "Experts"); a model without such a layer has the defaults here.
  int32_t num_experts = 0;         // of a layer that has them, [1, 1024]; 0: no layer has
  int32_t experts_per_token = 0;   // [1, 64], at most num_experts <- num_experts_per_tok
  int32_t expert_ffn_dim = 0;      // [1, 262144] <- moe_intermediate_size
  bool normalise_experts = false;  // the chosen experts' weights add up to 1 <- norm_topk_prob
  bool expert_biases = false;      // routers and experts add biases
  // [L] which layers have them <- mlp_only_layers, decoder_sparse_step; empty: none
  std::vector<bool> expert_layers;
  bool has_predictor = false;  // model_type "eta"; all others have none
  Gate gate = Gate::kNone;     // <- eta_gate: "silu" or "none"; always none without predictor
  float beta = 1.0f;           // [1e-3, 1000] <- eta_beta; not read for gate none
  // Defaults of what goes beyond the paper; absent, in this order: outlier without a gate, else
  // moment; 1 without a gate, else 0; shared without a gate, else own; attend.
  IndexKind index = IndexKind::kMoment;  // <- eta_index: "moment" or "outlier"
  int32_t sink_blocks = 0;               // [0, 1024] <- eta_sink_blocks
  bool shared_reads = false;             // <- eta_reads: "own" or "shared"
  bool temper_special = false;           // <- eta_special_keys: "attend" or "temper"; needs a gate
  int32_t block_size = 64;               // [4, 128], a multiple of 4 <- eta_block_size
  int32_t bos_id = -1;                   // <- bos_token_id; -1: none; for the tokenizer
  std::vector<int32_t> eos_ids;          // <- eos_token_id: a number or a list of at most 16

  bool operator==(const ModelConfig&) const = default;

  // REQUIRES: 0 <= i < num_layers.
  LayerKind layer(int32_t i) const {
    return layers.empty() ? LayerKind() : layers[static_cast<size_t>(i)];
  }
  // Whether the layer sees every key. Thresholds, selection and counts are of such layers alone.
  bool IsFull(int32_t i) const { return layer(i).window == 0; }
  int32_t num_full_layers() const {
    const auto windows = std::ranges::count_if(layers, [](LayerKind l) { return l.window > 0; });
    return num_layers - static_cast<int32_t>(windows);
  }
  std::vector<int32_t> full_layers() const;  // ascending
  // Whether some layer could be told to read less: not every one has a window.
  bool HasFullLayers() const {
    return layers.empty() || std::ranges::any_of(layers, [](LayerKind l) { return l.window == 0; });
  }
  bool HasExperts(int32_t layer) const {
    return !expert_layers.empty() && expert_layers[static_cast<size_t>(layer)];
  }
  int32_t group_size() const { return num_query_heads / num_kv_heads; }
  int64_t query_dim() const { return int64_t{num_query_heads} * head_dim; }
  int64_t kv_dim() const { return int64_t{num_kv_heads} * head_dim; }
  // s of attention.
  float softmax_scale() const {
    return static_cast<float>(1.0 / std::sqrt(query_scalar > 0.0 ? query_scalar : head_dim));
  }

  // Whether thresholds of the model are relative ones (eta-semantics.md, "Relative thresholds"):
  // it predicts none, and its records tell of outliers.
  bool has_relative_thresholds() const {
    return !has_predictor && gate == Gate::kNone && index == IndexKind::kOutlier;
  }
  // Whether rows select blocks without a profile: by predicted thresholds or by relative ones.
  bool has_dynamic_thresholds() const {
    return HasFullLayers() && (has_predictor || has_relative_thresholds());
  }
  // Sets index, sink_blocks, shared_reads and temper_special as of a file that names none of them;
  // the gate decides.
  void SetAttentionDefaults();
};

// INVALID_ARGUMENT naming the field and its limit. UNIMPLEMENTED for what would change the result
// and is not supported: model types that are not in model_family.h, rope scalings but linear,
// dynamic, llama3 and yarn, biases and experts that the family does not have, activations other
// than the family's, caps of logits, quantized weights. Fields of no consequence for inference are
// ignored.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json);

// The model as it computes sequences of at most `max_context` tokens: there a layer whose window is
// as long is a full layer. sliding_window stays what the file says.
ModelConfig ForContext(ModelConfig config, int32_t max_context);

// Tensor names (Hugging Face LLaMA's plus tau_proj) and shapes that the config calls for.
std::map<std::string, std::vector<int64_t>> ExpectedTensors(const ModelConfig& config);

// FAILED_PRECONDITION listing the first 10 differences: missing, not expected, other shape, or a
// dtype that is not float32, float16 or bfloat16. Known extras are stored rotary frequencies
// (self_attn.rotary_emb.inv_freq), which follow from rope_theta, and the lm_head.weight of a tied
// model.
absl::Status ValidateTensors(const ModelConfig& config,
                             const std::map<std::string, TensorInfo>& tensors);

}  // namespace eta
