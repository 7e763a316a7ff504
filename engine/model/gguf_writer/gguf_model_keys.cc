#include "engine/model/gguf_writer/gguf_model_keys.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/gguf/gguf_config.h"
#include "engine/checkpoint/gguf/gguf_eta.h"
#include "engine/checkpoint/gguf/gguf_metadata.h"
#include "engine/model/config_fields.h"
#include "engine/model/layer_kinds.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxModelBytes = size_t{1} << 20;
constexpr size_t kMaxModelDepth = 16;

uint32_t Size(int64_t size) {
  return static_cast<uint32_t>(size);
}

std::string TextOf(const Json& json, const char* field) {
  const auto found = json.find(field);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

// llama, mistral, qwen2, qwen3, qwen3_moe, smollm3, gemma3_text, or eta where the model was made as
// one.
std::string FamilyOf(const Json& json) {
  const std::string adapted = TextOf(json, "eta_family");
  const std::string type = TextOf(json, "model_type");
  return type == "eta" && !adapted.empty() ? adapted : type;
}

// What each pair's frequency is divided by.
std::vector<float> RopeFactors(const ModelConfig& config) {
  std::vector<float> factors;
  for (int32_t pair = 0; pair < config.head_dim / 2; ++pair) {
    const double turn = std::pow(double{config.rope_theta}, 2.0 * pair / config.head_dim);
    const double frequency = 1.0 / (2.0 * std::numbers::pi * turn);
    factors.push_back(static_cast<float>(frequency / config.rope_scaling.Scaled(frequency, pair)));
  }
  return factors;
}

// The object that has the scaling's numbers.
const Json& ScalingOf(const Json& json) {
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const auto found = json.find(name);
    if (found != json.end() && found->is_object()) return *found;
  }
  return json;
}

void SetYarnKeys(const Json& scaling, const ModelConfig& config, const std::string& prefix,
                 GgufHead& head) {
  head.Set(prefix + gguf_key::kScalingContext, Size(config.rope_scaling.original_context));
  for (const auto& [name, key] : {std::pair("beta_fast", gguf_key::kYarnBetaFast),
                                  std::pair("beta_slow", gguf_key::kYarnBetaSlow)}) {
    const auto found = scaling.find(name);
    if (found == scaling.end() || !found->is_number()) continue;
    head.Set(prefix + key, found->get<float>());
  }
}

absl::Status SetRopeKeys(const Json& json, const ModelConfig& config, const std::string& prefix,
                         GgufHead& head, GgufModelKeys& keys) {
  head.Set(prefix + gguf_key::kRopeTheta, config.rope_theta);
  head.Set(prefix + gguf_key::kRopeDim, Size(config.head_dim));
  const RopeScaling& scaling = config.rope_scaling;
  switch (scaling.type) {
    case RopeScalingType::kNone:
      return absl::OkStatus();
    case RopeScalingType::kLlama3:
      keys.rope_factors = RopeFactors(config);
      return absl::OkStatus();
    case RopeScalingType::kLinear:
    case RopeScalingType::kYarn: {
      const bool yarn = scaling.type == RopeScalingType::kYarn;
      head.Set(prefix + gguf_key::kScalingType, yarn ? "yarn" : "linear");
      head.Set(prefix + gguf_key::kScalingFactor, static_cast<float>(scaling.factor));
      if (yarn) SetYarnKeys(ScalingOf(json), config, prefix, head);
      return absl::OkStatus();
    }
    case RopeScalingType::kDynamic:
      break;
  }
  return UnsupportedConfig("rope_scaling", "of type dynamic has no place in a GGUF file");
}

// llama.cpp takes the weights of experts as normed, and experts in every layer.
absl::Status SetExpertKeys(const ModelConfig& config, const std::string& prefix, GgufHead& head) {
  if (config.num_experts == 0) return absl::OkStatus();
  if (!config.normalise_experts) {
    return UnsupportedConfig("norm_topk_prob", "false has no place in a GGUF file");
  }
  if (std::ranges::count(config.expert_layers, false) > 0) {
    return UnsupportedConfig(
        "mlp_only_layers",
        "and decoder_sparse_step have no place in a GGUF file: all layers there "
        "have experts");
  }
  head.Set(prefix + gguf_key::kExperts, Size(config.num_experts));
  head.Set(prefix + gguf_key::kExpertsPerToken, Size(config.experts_per_token));
  head.Set(prefix + gguf_key::kExpertFfnDim, Size(config.expert_ffn_dim));
  return absl::OkStatus();
}

// Whether the last layer of each `period`, and no other, is full.
bool IsPeriodic(const ModelConfig& config, int32_t period) {
  for (int32_t i = 0; i < config.num_layers; ++i) {
    if (config.IsFull(i) != ((i + 1) % period == 0)) return false;
  }
  return true;
}

// What llama.cpp reads of gemma3: a period, where it is not the usual one. The rest follows from
// the architecture.
absl::Status SetGemmaKeys(const ModelConfig& config, const std::string& prefix, GgufHead& head) {
  const int64_t scalar =
      GgufQueryScalar(config.num_layers, config.model_dim, config.num_query_heads, config.head_dim);
  if (config.query_scalar != static_cast<double>(scalar)) {
    return UnsupportedConfig("query_pre_attn_scalar",
                             absl::StrCat("but ", scalar, " has no place in a GGUF file"));
  }
  if (config.sliding_window == 0) return absl::OkStatus();
  int32_t period = kGgufWindowPeriod;
  if (!IsPeriodic(config, period)) {
    const std::vector<int32_t> full = config.full_layers();
    period = full.empty() ? config.num_layers + 1 : full.front() + 1;
    if (!IsPeriodic(config, period)) {
      return UnsupportedConfig("layer_types", "without a period has no place in a GGUF file");
    }
    head.Set(prefix + gguf_key::kWindowPattern, Size(period));
  }
  head.Set(prefix + gguf_key::kWindow, Size(config.sliding_window));
  if (config.local_rope_theta != kGgufLocalRopeTheta) {
    head.Set(prefix + gguf_key::kLocalRopeTheta, config.local_rope_theta);
  }
  return absl::OkStatus();
}

// Without the list all layers have the window.
void SetWindowKeys(const ModelConfig& config, const std::string& prefix, GgufHead& head) {
  if (config.sliding_window == 0) return;
  head.Set(prefix + gguf_key::kWindow, Size(config.sliding_window));
  if (!config.HasFullLayers()) return;
  std::vector<bool> slides;
  for (int32_t i = 0; i < config.num_layers; ++i) slides.push_back(!config.IsFull(i));
  head.Set(prefix + gguf_key::kWindowPattern, slides);
}

// Whether the model's layers have RoPE as these.
bool RotateAlike(const ModelConfig& config, std::vector<LayerKind> layers) {
  layers.resize(static_cast<size_t>(config.num_layers));
  for (int32_t i = 0; i < config.num_layers; ++i) {
    if (config.layer(i).rotates != layers[static_cast<size_t>(i)].rotates) return false;
  }
  return true;
}

void SetEtaKeys(const std::string& family, const ModelConfig& config, GgufHead& head) {
  if (config.has_predictor) {
    head.Set(gguf_key::kEtaFamily, family);
    head.Set(gguf_key::kEtaGate, config.gate == Gate::kSilu ? "silu" : "none");
    head.Set(gguf_key::kEtaBeta, config.beta);
  }
  const ModelConfig usual = [&config] {
    ModelConfig defaults = config;
    defaults.SetAttentionDefaults();
    defaults.block_size = ModelConfig().block_size;
    return defaults;
  }();
  // A file of a model that has nothing of ours has no keys of ours.
  if (!config.has_predictor && config == usual) return;
  head.Set(gguf_key::kEtaIndex, std::string_view(Name(config.index)));
  head.Set(gguf_key::kEtaSinkBlocks, Size(config.sink_blocks));
  head.Set(gguf_key::kEtaReads, config.shared_reads ? "shared" : "own");
  head.Set(gguf_key::kEtaSpecialKeys, config.temper_special ? "temper" : "attend");
  head.Set(gguf_key::kEtaBlockSize, Size(config.block_size));
}

}  // namespace

absl::StatusOr<GgufModelKeys> SetModelKeys(std::string_view config_json, const ModelConfig& config,
                                           GgufHead& head) {
  ASSIGN_OR_RETURN(const auto tree,
                   ParseStrictJson("config.json", config_json, kMaxModelBytes, kMaxModelDepth));
  const Json& json = tree.root();
  std::string family = FamilyOf(json);
  if (config.sinks || config.expert_biases) {
    return UnsupportedConfig("model_type", "'" + family + "' is read from GGUF files, not written");
  }
  // Without its window Mistral's form is LLaMA's.
  if (family == "mistral" && config.sliding_window == 0) family = "llama";
  // Without a layer of experts Qwen3-MoE's is Qwen3's.
  if (family == "qwen3_moe" && config.num_experts == 0) family = "qwen3";
  GgufModelKeys keys;
  keys.architecture = family == "mistral" || family == "eta" ? "llama" : family;
  if (family == "qwen3_moe") keys.architecture = "qwen3moe";
  if (family == "gemma3_text") keys.architecture = "gemma3";
  const std::string prefix = keys.architecture + ".";

  head.Set(gguf_key::kArchitecture, keys.architecture);
  head.Set(prefix + gguf_key::kBlocks, Size(config.num_layers));
  head.Set(prefix + gguf_key::kContext,
           Size(json.value("max_position_embeddings", int64_t{config.max_context})));
  head.Set(prefix + gguf_key::kModelDim, Size(config.model_dim));
  head.Set(prefix + gguf_key::kFfnDim, Size(config.ffn_dim));
  head.Set(prefix + gguf_key::kVocabulary, Size(config.vocab_size));
  head.Set(prefix + gguf_key::kQueryHeads, Size(config.num_query_heads));
  head.Set(prefix + gguf_key::kKvHeads, Size(config.num_kv_heads));
  head.Set(prefix + gguf_key::kKeyDim, Size(config.head_dim));
  head.Set(prefix + gguf_key::kValueDim, Size(config.head_dim));
  head.Set(prefix + gguf_key::kNormEps, config.norm_eps);
  if (family == "gemma3_text") {
    RETURN_IF_ERROR(SetGemmaKeys(config, prefix, head));
  } else {
    SetWindowKeys(config, prefix, head);
  }
  RETURN_IF_ERROR(SetExpertKeys(config, prefix, head));
  const auto layers = family == "smollm3"
                          ? LayersByInterval(config.num_layers, kGgufUnrotatedInterval)
                          : std::vector<LayerKind>();
  if (!RotateAlike(config, layers)) {
    return UnsupportedConfig("no_rope_layers", "but every fourth has no place in a GGUF file");
  }
  RETURN_IF_ERROR(SetRopeKeys(json, config, prefix, head, keys));
  SetEtaKeys(family, config, head);
  return keys;
}

}  // namespace eta
