#include "training/export/exported_config.h"

#include "nlohmann/json.hpp"

namespace eta::training {
namespace {

using Json = nlohmann::json;

const char* GateName(GateKind gate) {
  switch (gate) {
    case GateKind::kSilu:
      return "silu";
    case GateKind::kAdditive:
      return "additive";
    case GateKind::kNone:
      break;
  }
  return "none";
}

void SetGate(const ModelSpec& spec, float beta, Json& json) {
  json["model_type"] = "eta";
  json["architectures"] = {"EtaForCausalLM"};
  json["eta_gate"] = GateName(spec.gate);
  json["eta_beta"] = beta;
}

// What a runtime of it would have to know. The server has no such model_type, and says so.
void SetNativeSparse(const ModelSpec& spec, Json& json) {
  json["model_type"] = "nsa";
  json["architectures"] = {"NsaForCausalLM"};
  json["nsa_compressed_window"] = kCompressedWindow;
  json["nsa_compressed_stride"] = kCompressedStride;
  json["nsa_compressor_size"] = spec.compressor_dim();
  json["nsa_block_size"] = kRegulariserBlock;
  json["nsa_selected_blocks"] = kSelectedBlocks;
  json["nsa_sliding_window"] = kSlidingWindow;
  json.erase("eta_block_size");
}

}  // namespace

std::string PretrainedConfigJson(const ModelSpec& spec, float beta) {
  const ModelConfig& config = spec.config;
  Json json = {{"model_type", "llama"},
               {"architectures", {"LlamaForCausalLM"}},
               {"hidden_act", "silu"},
               {"torch_dtype", "bfloat16"},
               {"vocab_size", config.vocab_size},
               {"hidden_size", config.model_dim},
               {"intermediate_size", config.ffn_dim},
               {"num_hidden_layers", config.num_layers},
               {"num_attention_heads", config.num_query_heads},
               {"num_key_value_heads", config.num_kv_heads},
               {"head_dim", config.head_dim},
               {"rms_norm_eps", config.norm_eps},
               {"rope_theta", config.rope_theta},
               {"max_position_embeddings", config.max_context},
               {"tie_word_embeddings", config.tie_word_embeddings},
               {"eta_block_size", config.block_size}};
  if (config.bos_id >= 0) json["bos_token_id"] = config.bos_id;
  if (!config.eos_ids.empty()) json["eos_token_id"] = config.eos_ids;
  if (spec.has_thresholds()) SetGate(spec, beta, json);
  if (spec.is_native_sparse()) SetNativeSparse(spec, json);
  return json.dump(2) + "\n";
}

std::string AdaptedConfigJson(std::string_view original, const ModelSpec& spec, float beta) {
  Json json = Json::parse(original.begin(), original.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) json = Json::object();
  // A model with a gate already keeps the family that it was adapted from.
  const auto family = json.find("model_type");
  if (family != json.end() && *family != "eta") json["eta_family"] = *family;
  SetGate(spec, beta, json);
  json["torch_dtype"] = "bfloat16";
  // The sinks and outlier keys of the original stay (eta-semantics.md, "Index kinds").
  json["eta_index"] = "outlier";
  json["eta_sink_blocks"] = 1;
  return json.dump(2) + "\n";
}

}  // namespace eta::training
