// lint: untrusted-input, fuzz-covered
#include "engine/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/files/input_file.h"
#include "engine/base/json/json_check.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/quantized/quantization_config.h"
#include "engine/model/config_fields.h"
#include "engine/model/layer_kinds.h"
#include "engine/model/model_family.h"
#include "engine/model/rope/rope_config.h"
#include "kernels/batch.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::json;

constexpr const char* kHead = "lm_head.weight";
constexpr int32_t kMaxFfnDim = 262144;
constexpr int32_t kMaxGroupSize = 32;  // heads of a group stand in a 32-bit mask

void CheckActivation(ConfigFields& fields, Activation activation) {
  const bool silu = activation != Activation::kGelu;
  const char* const field = silu ? "hidden_act" : "hidden_activation";
  const std::string supported = silu ? "silu" : "gelu_pytorch_tanh";
  const std::string named = fields.String(field, supported.c_str());
  if (named == supported) return;
  fields.Unsupported(field, Quoted(named) + " is not supported, only " + supported);
}

// What other models may carry and this runtime does not compute.
void RefuseUnsupported(ConfigFields& fields, const ModelFamily& family) {
  if (fields.Bool("mlp_bias")) fields.Unsupported("mlp_bias", "true is not supported");
  if (const Json* quantization = fields.Find("quantization_config")) {
    fields.Fail(ParseQuantization(*quantization).status());
  }
  if (fields.Double("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0) {
    fields.Unsupported("partial_rotary_factor", "is not supported");
  }
  CheckActivation(fields, family.activation);
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (fields.Find(cap) != nullptr) fields.Unsupported(cap, "is not supported");
  }
  if (fields.Bool("use_bidirectional_attention")) {
    fields.Unsupported("use_bidirectional_attention", "true is not supported");
  }
}

// A family's default; 0: it has none.
std::optional<int32_t> Absent(int32_t value) {
  return value > 0 ? std::optional(value) : std::nullopt;
}

void ReadBiases(ConfigFields& fields, BiasRule rule, ModelConfig& config) {
  const bool configured = fields.Bool("attention_bias", rule == BiasRule::kUnlessOff);
  if (rule == BiasRule::kNone && configured) {
    fields.Unsupported("attention_bias", "true is not supported");
  }
  config.out_bias = configured && (rule == BiasRule::kConfigured || rule == BiasRule::kUnlessOff);
  config.qkv_bias = config.out_bias || rule == BiasRule::kQkv;
}

void ReadHeads(ConfigFields& fields, const ModelFamily& family, ModelConfig& config) {
  constexpr int32_t kMost = 1024;
  config.num_query_heads =
      fields.Int("num_attention_heads", 1, kMost, Absent(family.shape.num_query_heads));
  // transformers takes as many as query heads where the file says null.
  const bool as_query_heads = family.num_kv_heads < 0 || fields.Names("num_key_value_heads");
  config.num_kv_heads = fields.Int("num_key_value_heads", 1, kMost,
                                   as_query_heads ? config.num_query_heads : family.num_kv_heads);
  if (fields.Find("head_dim") != nullptr) {
    config.head_dim = fields.Int("head_dim", 2, 256);
  } else if (family.head_dim > 0 && !fields.Names("head_dim")) {
    config.head_dim = family.head_dim;
  } else if (config.model_dim % config.num_query_heads == 0) {
    config.head_dim = config.model_dim / config.num_query_heads;
  }
  if (!fields.status().ok()) return;
  if (config.num_query_heads % config.num_kv_heads != 0) {
    fields.Invalid("num_key_value_heads", "must divide num_attention_heads");
  } else if (config.group_size() > kMaxGroupSize) {
    fields.Invalid("num_attention_heads", "must be at most 32 for each key-value head");
  }
  if (config.head_dim < 2 || config.head_dim > 256 || config.head_dim % 2 != 0) {
    fields.Invalid("head_dim",
                   "(or hidden_size / num_attention_heads) must be even, from 2 to 256");
  }
}

// The number of experts under either of its names.
int32_t ReadNumExperts(ConfigFields& fields, int32_t absent) {
  constexpr const char* kNames[] = {"num_experts", "num_local_experts"};
  const int32_t count = fields.Int(kNames[0], 1, ModelConfig::kMaxExperts, absent);
  if (fields.Find(kNames[1]) == nullptr) return count;
  const int32_t local = fields.Int(kNames[1], 1, ModelConfig::kMaxExperts);
  if (fields.Find(kNames[0]) != nullptr && local != count) {
    fields.Invalid(kNames[1], "differs from num_experts");
  }
  return local;
}

// Layers have experts at every step of decoder_sparse_step, but for those that are named.
std::vector<bool> ReadExpertLayers(ConfigFields& fields, int32_t num_layers) {
  constexpr const char* kDense = "mlp_only_layers";
  const int32_t step = fields.Int("decoder_sparse_step", 1, 1 << 20, 1);
  std::vector<bool> layers(static_cast<size_t>(num_layers));
  for (int32_t i = 0; i < num_layers; ++i) layers[static_cast<size_t>(i)] = (i + 1) % step == 0;
  const Json* dense = fields.Find(kDense);
  if (dense == nullptr) return layers;
  if (!dense->is_array() || dense->size() > layers.size()) {
    fields.Invalid(kDense, "must be a list of at most as many numbers as there are layers");
    return layers;
  }
  for (const Json& layer : *dense) {
    layers[static_cast<size_t>(fields.ToInt(kDense, layer, 0, num_layers - 1))] = false;
  }
  return layers;
}

void ReadExperts(ConfigFields& fields, const ModelFamily& family, ModelConfig& config) {
  const ExpertDefaults& absent = family.experts;
  if (absent.count == 0) {
    for (const char* field : {"num_experts", "num_local_experts"}) {
      if (fields.Find(field) != nullptr) fields.Unsupported(field, "is not supported");
    }
    return;
  }
  const int32_t count = ReadNumExperts(fields, absent.count);
  const int32_t per_token =
      fields.Int("num_experts_per_tok", 1, ModelConfig::kMaxExpertsPerToken, absent.per_token);
  const int32_t ffn_dim = absent.ffn_dim == 0
                              ? config.ffn_dim
                              : fields.Int("moe_intermediate_size", 1, kMaxFfnDim, absent.ffn_dim);
  const bool normalise = absent.normalised || fields.Bool("norm_topk_prob");
  std::vector<bool> layers = ReadExpertLayers(fields, config.num_layers);
  if (per_token > count) {
    fields.Invalid("num_experts_per_tok", absl::StrCat("must be at most num_experts, ", count));
  }
  const auto with = static_cast<int32_t>(std::ranges::count(layers, true));
  if (with > ModelConfig::kMaxExpertsOfModel / count) {
    fields.Invalid("num_experts", absl::StrCat("must be at most ", ModelConfig::kMaxExpertsOfModel,
                                               " in all layers together"));
  }
  if (with == 0) return;
  config.num_experts = count;
  config.experts_per_token = per_token;
  config.expert_ffn_dim = ffn_dim;
  config.normalise_experts = normalise;
  config.expert_biases = absent.biases;
  config.expert_layers = std::move(layers);
}

// transformers rounds the embedding's scale to the type in which it keeps the weights.
float InType(const std::string& dtype, float value) {
  if (dtype == "bfloat16") return RoundTo(DType::kBFloat16, value);
  if (dtype == "float16") return RoundTo(DType::kFloat16, value);
  return value;
}

// Norms, scales and the gate's function.
void ReadScales(ConfigFields& fields, const ModelFamily& family, ModelConfig& config) {
  config.activation = family.activation;
  config.post_norms = family.post_norms;
  config.unit_norms = family.unit_norms;
  if (family.scales_embedding) {
    // Older files call it torch_dtype.
    const std::string dtype =
        fields.String("dtype", fields.String("torch_dtype", "float32").c_str());
    config.embedding_scale = InType(dtype, std::sqrt(static_cast<float>(config.model_dim)));
  }
  if (family.query_scalar > 0.0) {
    config.query_scalar = fields.Double("query_pre_attn_scalar", 1.0, 1e6, family.query_scalar);
  }
}

void ReadSpecialIds(ConfigFields& fields, ModelConfig& config) {
  const int32_t last = config.vocab_size - 1;
  if (fields.Find("bos_token_id") != nullptr) config.bos_id = fields.Int("bos_token_id", 0, last);
  const Json* eos = fields.Find("eos_token_id");
  if (eos == nullptr) return;
  if (!eos->is_array()) {
    config.eos_ids = {fields.ToInt("eos_token_id", *eos, 0, last)};
    return;
  }
  if (eos->size() > kMaxEosIds) {
    fields.Invalid("eos_token_id", absl::StrCat("has over ", kMaxEosIds, " entries"));
    return;
  }
  for (const Json& id : *eos) config.eos_ids.push_back(fields.ToInt("eos_token_id", id, 0, last));
}

void ReadGate(ConfigFields& fields, const ModelFamily& family, ModelConfig& config) {
  config.has_predictor = family.has_predictor;
  if (!config.has_predictor) return;
  const std::string gate = fields.String("eta_gate", "silu");
  if (gate != "silu" && gate != "none") {
    fields.Unsupported("eta_gate", Quoted(gate) + " is not supported, only silu and none");
  }
  config.gate = gate == "silu" ? Gate::kSilu : Gate::kNone;
  config.beta = fields.Float("eta_beta", 1e-3, 1000.0);
}

// The clamped activation is called "silu" too, and its constants have fields.
void CheckClamp(ConfigFields& fields, const ModelFamily& family) {
  if (family.activation != Activation::kClamped) return;
  const std::pair<const char*, float> fixed[] = {{"swiglu_limit", kClampedLimit},
                                                 {"swiglu_alpha", kClampedSlope}};
  for (const auto& [field, value] : fixed) {
    if (fields.Float(field, 0.0, 1e6, value) == value) continue;
    fields.Unsupported(field, absl::StrCat("other than ", value, " is not supported"));
  }
}

// The family that `family` was adapted from, with a predictor: eta_family, where it is named.
ModelFamily ReadAdaptedFamily(ConfigFields& fields, const ModelFamily& family) {
  if (!family.has_predictor || fields.Find("eta_family") == nullptr) return family;
  const std::string name = fields.String("eta_family", "");
  const ModelFamily* original = FindModelFamily(name);
  if (original == nullptr || original->has_predictor || original->experts.count > 0 ||
      original->post_norms) {
    fields.Unsupported("eta_family", Quoted(name) + " is not a family that can be adapted");
    return family;
  }
  ModelFamily adapted = *original;
  adapted.has_predictor = true;
  return adapted;
}

// Whether a field has the second of two words; absent: as `other` says.
bool IsOther(ConfigFields& fields, const char* field, const char* one, const char* other,
             bool absent) {
  const std::string word = fields.String(field, absent ? other : one);
  if (word != one && word != other) {
    fields.Unsupported(field,
                       absl::StrCat(Quoted(word), " is not supported, only ", one, " and ", other));
  }
  return word == other;
}

void ReadAttentionDefaults(ConfigFields& fields, ModelConfig& config) {
  config.SetAttentionDefaults();
  const bool outlier = config.index == IndexKind::kOutlier;
  config.index = IsOther(fields, "eta_index", "moment", "outlier", outlier) ? IndexKind::kOutlier
                                                                            : IndexKind::kMoment;
  config.sink_blocks = fields.Int("eta_sink_blocks", 0, kMaxAlwaysRead, config.sink_blocks);
  config.shared_reads = IsOther(fields, "eta_reads", "own", "shared", config.shared_reads);
  config.temper_special =
      IsOther(fields, "eta_special_keys", "attend", "temper", config.temper_special);
  if (config.temper_special && config.gate == Gate::kNone) {
    fields.Invalid("eta_special_keys", "must be attend: the model has no gate");
  }
}

}  // namespace

void ModelConfig::SetAttentionDefaults() {
  const bool gated = gate != Gate::kNone;
  index = gated ? IndexKind::kMoment : IndexKind::kOutlier;
  sink_blocks = gated ? 0 : 1;
  shared_reads = !gated;
  temper_special = false;
}

std::vector<int32_t> ModelConfig::full_layers() const {
  std::vector<int32_t> full;
  for (int32_t i = 0; i < num_layers; ++i) {
    if (IsFull(i)) full.push_back(i);
  }
  return full;
}

ModelConfig ForContext(ModelConfig config, int32_t max_context) {
  for (LayerKind& layer : config.layers) {
    if (layer.window >= max_context) layer.window = 0;
  }
  config.layers = Canonical(std::move(config.layers));
  return config;
}

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text) {
  RETURN_IF_ERROR(CheckJson("config.json", text, kConfigLimits));
  const Json json = Json::parse(text.begin(), text.end(), nullptr, false);

  ConfigFields fields(json);
  const std::string model_type = fields.String("model_type", "");
  const ModelFamily* named = FindModelFamily(model_type);
  if (!fields.status().ok()) return fields.status();
  if (named == nullptr) {
    return UnsupportedConfig(
        "model_type",
        absl::StrCat(Quoted(model_type), " is not supported, only ", KnownModelTypes()));
  }
  const ModelFamily family = ReadAdaptedFamily(fields, *named);
  ModelConfig config;
  ReadGate(fields, family, config);
  ReadAttentionDefaults(fields, config);
  RefuseUnsupported(fields, family);
  config.vocab_size = fields.Int("vocab_size", 1, 1 << 20, Absent(family.shape.vocab_size));
  config.model_dim = fields.Int("hidden_size", 1, 65536);
  config.ffn_dim = fields.Int("intermediate_size", 1, kMaxFfnDim);
  config.num_layers = fields.Int("num_hidden_layers", 1, 512);
  ReadHeads(fields, family, config);
  ReadBiases(fields, family.biases, config);
  config.head_norms = family.head_norms;
  config.sinks = family.sinks;
  CheckClamp(fields, family);
  ReadLayerKinds(fields, family, config);
  ReadExperts(fields, family, config);
  const double eps = family.shape.norm_eps;
  config.norm_eps =
      fields.Float("rms_norm_eps", 1e-12, 0.1, eps > 0.0 ? std::optional(eps) : std::nullopt);
  ReadScales(fields, family, config);
  // Yarn's ramp is computed from head_dim.
  if (fields.status().ok()) ReadRope(fields, family, config);
  config.tie_word_embeddings = fields.Bool("tie_word_embeddings", family.tied);
  config.block_size = fields.Int("eta_block_size", 4, 128, 64);
  if (config.block_size % 4 != 0) fields.Invalid("eta_block_size", "must be a multiple of 4");
  ReadSpecialIds(fields, config);
  if (!fields.status().ok()) return fields.status();
  return config;
}

std::map<std::string, std::vector<int64_t>> ExpectedTensors(const ModelConfig& config) {
  const int64_t dim = config.model_dim;
  std::map<std::string, std::vector<int64_t>> expected;
  expected["model.embed_tokens.weight"] = {config.vocab_size, dim};
  expected["model.norm.weight"] = {dim};
  if (!config.tie_word_embeddings) expected[kHead] = {config.vocab_size, dim};
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    expected[layer + "input_layernorm.weight"] = {dim};
    expected[layer + "self_attn.q_proj.weight"] = {config.query_dim(), dim};
    expected[layer + "self_attn.k_proj.weight"] = {config.kv_dim(), dim};
    expected[layer + "self_attn.v_proj.weight"] = {config.kv_dim(), dim};
    expected[layer + "self_attn.o_proj.weight"] = {dim, config.query_dim()};
    if (config.qkv_bias) {
      expected[layer + "self_attn.q_proj.bias"] = {config.query_dim()};
      expected[layer + "self_attn.k_proj.bias"] = {config.kv_dim()};
      expected[layer + "self_attn.v_proj.bias"] = {config.kv_dim()};
    }
    if (config.out_bias) expected[layer + "self_attn.o_proj.bias"] = {dim};
    if (config.head_norms) {
      expected[layer + "self_attn.q_norm.weight"] = {config.head_dim};
      expected[layer + "self_attn.k_norm.weight"] = {config.head_dim};
    }
    if (config.sinks) expected[layer + "self_attn.sinks"] = {config.num_query_heads};
    if (config.has_predictor) {
      expected[layer + "self_attn.tau_proj.weight"] = {config.num_query_heads, config.query_dim()};
      expected[layer + "self_attn.tau_proj.bias"] = {config.num_query_heads};
    }
    expected[layer + "post_attention_layernorm.weight"] = {dim};
    if (config.post_norms) {
      expected[layer + "pre_feedforward_layernorm.weight"] = {dim};
      expected[layer + "post_feedforward_layernorm.weight"] = {dim};
    }
    const auto feed_forward = [&](const std::string& prefix, int64_t width, bool biases) {
      expected[prefix + "gate_proj.weight"] = {width, dim};
      expected[prefix + "up_proj.weight"] = {width, dim};
      expected[prefix + "down_proj.weight"] = {dim, width};
      if (!biases) return;
      expected[prefix + "gate_proj.bias"] = {width};
      expected[prefix + "up_proj.bias"] = {width};
      expected[prefix + "down_proj.bias"] = {dim};
    };
    if (config.HasExperts(i)) {
      expected[layer + "mlp.gate.weight"] = {config.num_experts, dim};
      if (config.expert_biases) expected[layer + "mlp.gate.bias"] = {config.num_experts};
      for (int32_t e = 0; e < config.num_experts; ++e) {
        feed_forward(absl::StrCat(layer, "mlp.experts.", e, "."), config.expert_ffn_dim,
                     config.expert_biases);
      }
    } else {
      feed_forward(layer + "mlp.", config.ffn_dim, /*biases=*/false);
    }
  }
  return expected;
}

absl::Status ValidateTensors(const ModelConfig& config,
                             const std::map<std::string, TensorInfo>& tensors) {
  constexpr size_t kMaxListed = 10;
  size_t differences = 0;
  std::vector<std::string> listed;
  const auto differs = [&](const std::string& name, const std::string& sentence) {
    if (++differences <= kMaxListed) listed.push_back(Quoted(name) + " " + sentence);
  };
  const auto shape = [](const std::vector<int64_t>& dims) {
    return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
  };

  auto expected = ExpectedTensors(config);
  if (config.tie_word_embeddings && tensors.contains(kHead)) {
    expected[kHead] = {config.vocab_size, config.model_dim};
  }
  for (const auto& [name, dims] : expected) {
    const auto it = tensors.find(name);
    if (it == tensors.end()) {
      differs(name, "is missing");
    } else if (it->second.shape != dims) {
      differs(name,
              absl::StrCat("has shape ", shape(it->second.shape), ", expected ", shape(dims)));
    } else if (const DType dtype = it->second.dtype;
               dtype != DType::kFloat32 && dtype != DType::kFloat16 && dtype != DType::kBFloat16) {
      differs(name, absl::StrCat("has dtype ", std::string(Name(dtype)),
                                 ", expected float32, float16 or bfloat16"));
    }
  }
  constexpr std::string_view kKnownExtra = ".self_attn.rotary_emb.inv_freq";
  for (const auto& entry : tensors) {
    if (expected.contains(entry.first)) continue;
    if (std::string_view(entry.first).ends_with(kKnownExtra)) continue;
    differs(entry.first, "is not expected");
  }
  if (differences == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the tensors do not fit config.json, ",
                                                    differences,
                                                    " differences: ", absl::StrJoin(listed, "; ")));
}

}  // namespace eta
