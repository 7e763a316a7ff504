// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/gguf/gguf_config.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/files/input_file.h"
#include "engine/base/json/json_writer.h"
#include "engine/checkpoint/gguf/gguf_eta.h"
#include "engine/checkpoint/gguf/gguf_rope.h"

namespace eta {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;
constexpr int64_t kMaxListedLayers = 1024;  // more than any model may have

// Behind "llama." and the like. One that is not here would change the model in a way that nobody
// here knows.
constexpr std::string_view kKnownKeys[] = {
    gguf_key::kQueryHeads,      gguf_key::kKvHeads,        gguf_key::kKeyDim,
    gguf_key::kNormEps,         gguf_key::kWindow,         gguf_key::kWindowPattern,
    gguf_key::kValueDim,        gguf_key::kBlocks,         gguf_key::kContext,
    gguf_key::kModelDim,        gguf_key::kExperts,        gguf_key::kExpertsPerToken,
    gguf_key::kSharedExperts,   gguf_key::kExpertFfnDim,   "expert_gating_func",
    "expert_weights_norm",      gguf_key::kFfnDim,         gguf_key::kRopeDim,
    gguf_key::kRopeTheta,       gguf_key::kLocalRopeTheta, "rope.scale_linear",
    "rope.scaling.attn_factor", gguf_key::kScalingFactor,  "rope.scaling.finetuned",
    gguf_key::kScalingContext,  gguf_key::kScalingType,    "rope.scaling.yarn_attn_factor",
    gguf_key::kYarnBetaFast,    gguf_key::kYarnBetaSlow,   "rope.scaling.yarn_ext_factor",
    "tensor_data_layout",       gguf_key::kVocabulary,
};

// 0 says that there is none of it, as files of several writers do; any other number would change
// the model.
constexpr std::string_view kZeroKeys[] = {
    "attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale", "attn_logit_softcapping",
    "embedding_scale",     "final_logit_softcapping",  "logit_scale",     "residual_scale",
};

constexpr std::string_view kGptOss = "gpt_oss";

struct Family {
  std::string_view architecture;  // of the GGUF file
  std::string_view model_type;    // of config.json
  std::string_view class_name;
  bool permuted_heads;
  bool has_experts = false;  // in every layer
  // Its config.json says by layer which ones have a window; of the others all have it.
  bool windows_by_layer = false;
  // The last of so many layers has no window where no key says which ones have; 0: all have it.
  int64_t window_period = 0;
  bool gemma = false;  // norms, scales and gates as Gemma 3 has them
};
constexpr Family kFamilies[] = {
    {"llama", "llama", "LlamaForCausalLM", true},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", false, false, true},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", false, false, true},
    {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", false, true},
    {"smollm3", "smollm3", "SmolLM3ForCausalLM", true, false, true},
    {"gpt-oss", kGptOss, "GptOssForCausalLM", false, true, true, 2},
    {"gemma3", "gemma3_text", "Gemma3ForCausalLM", false, false, true, kGgufWindowPeriod, true},
};
constexpr Family kMistral = {"llama", "mistral", "MistralForCausalLM", true};

const Family* FindFamily(std::string_view architecture) {
  const auto* const found = std::ranges::find(kFamilies, architecture, &Family::architecture);
  return found == std::end(kFamilies) ? nullptr : found;
}

void RefuseUnknown(GgufMetadata& metadata, const std::string& prefix) {
  for (const std::string& key : metadata.KeysUnder(prefix)) {
    const std::string_view name = std::string_view(key).substr(prefix.size());
    if (std::find(std::begin(kZeroKeys), std::end(kZeroKeys), name) != std::end(kZeroKeys)) {
      const auto number = metadata.OptionalReal(key);
      if (number && *number != 0.0) metadata.FailUnsupported(key, "other than 0 is not supported");
    } else if (std::find(std::begin(kKnownKeys), std::end(kKnownKeys), name) ==
               std::end(kKnownKeys)) {
      metadata.FailUnsupported(key, "is not known");
    }
  }
  // Of the order of q_proj and k_proj; both that were ever written mean the same.
  metadata.OptionalText(prefix + "tensor_data_layout");
}

// The file says nothing of norm_topk_prob where llama.cpp norms in any case.
void WriteExperts(GgufMetadata& metadata, const std::string& prefix, const Family& family,
                  JsonWriter& json) {
  // Of llama.cpp's functions softmax, over all experts or over the chosen ones.
  const int64_t softmax = family.model_type == kGptOss ? 3 : 1;
  const std::string function = prefix + "expert_gating_func";
  if (metadata.OptionalInteger(function, 0, kMaxSize).value_or(softmax) != softmax) {
    metadata.FailUnsupported(function,
                             absl::StrCat("other than ", softmax, ", softmax, is not supported"));
  }
  const std::string norm = prefix + "expert_weights_norm";
  if (!metadata.OptionalBool(norm).value_or(true)) {
    metadata.FailUnsupported(norm, "false is not supported with this architecture");
  }
  const auto size = [&](const char* name) { return metadata.Integer(prefix + name, 1, kMaxSize); };
  const bool has_one_width = family.model_type == kGptOss;
  json.Key(has_one_width ? "intermediate_size" : "moe_intermediate_size")
      .Value(size(gguf_key::kExpertFfnDim));
  json.Key("norm_topk_prob").Value(true);
  json.Key("num_experts").Value(size(gguf_key::kExperts));
  json.Key("num_experts_per_tok").Value(size(gguf_key::kExpertsPerToken));
}

void RefuseExperts(GgufMetadata& metadata, const std::string& prefix, const Family& family) {
  std::vector<const char*> refused = {gguf_key::kSharedExperts};
  if (!family.has_experts) {
    refused.insert(refused.end(),
                   {gguf_key::kExperts, gguf_key::kExpertsPerToken, gguf_key::kExpertFfnDim});
  }
  for (const char* name : refused) {
    const auto experts = metadata.OptionalInteger(prefix + name, 0, kMaxSize);
    if (experts.value_or(0) != 0) metadata.FailUnsupported(prefix + name, "is not supported");
  }
}

// Which layers have the window: as the architecture has it, unless the file says which, by a list
// or by a period, of which the last layer has none. So does llama.cpp.
std::vector<bool> WindowLayers(GgufMetadata& metadata, const std::string& prefix,
                               int64_t num_layers, int64_t usual_period) {
  const std::string key = prefix + gguf_key::kWindowPattern;
  if (metadata.IsList(key)) {
    std::vector<bool> layers = metadata.Bools(key);
    if (static_cast<int64_t>(layers.size()) != num_layers) {
      metadata.Fail(key, absl::StrCat("must have an entry for each of ", num_layers, " layers"));
    }
    return layers;
  }
  const int64_t period = metadata.OptionalInteger(key, 0, kMaxSize).value_or(usual_period);
  std::vector<bool> layers;
  for (int64_t i = 0; i < std::min(num_layers, kMaxListedLayers); ++i) {
    layers.push_back(period == 0 || i % period < period - 1);
  }
  return layers;
}

void WriteWindow(GgufMetadata& metadata, const std::string& prefix, const Family& family,
                 int64_t num_layers, int64_t window, JsonWriter& json) {
  const std::vector<bool> slides = WindowLayers(metadata, prefix, num_layers, family.window_period);
  json.Key("sliding_window").Value(window);
  if (family.model_type != "mistral" && !family.gemma) {
    json.Key("use_sliding_window").Value(true);
  }
  if (family.windows_by_layer) {
    json.Key("layer_types").BeginArray();
    for (const bool slide : slides) json.Value(slide ? "sliding_attention" : "full_attention");
    json.End();
  } else if (std::ranges::count(slides, false) > 0) {
    metadata.FailUnsupported(prefix + gguf_key::kWindowPattern,
                             "with layers that have no window is not supported with this "
                             "architecture");
  }
}

// Without a window all layers of the architecture are full, and turn as those.
void WriteGemma(GgufMetadata& metadata, const std::string& prefix, int64_t window,
                int64_t num_layers, int64_t query_scalar, JsonWriter& json) {
  const std::string base = prefix + gguf_key::kLocalRopeTheta;
  const double local = metadata.OptionalReal(base).value_or(double{kGgufLocalRopeTheta});
  json.Key("rope_local_base_freq").Value(local);
  json.Key("query_pre_attn_scalar").Value(query_scalar);
  if (window > 0) return;
  json.Key("layer_types").BeginArray();
  for (int64_t i = 0; i < std::min(num_layers, kMaxListedLayers); ++i) json.Value("full_attention");
  json.End();
}

bool HasTensor(const GgufHeader& header, std::string_view name) {
  return header.tensors.contains(name);
}

int64_t ReadVocabSize(GgufMetadata& metadata, const GgufHeader& header, const std::string& prefix,
                      const GgufTokenizer& tokenizer) {
  const auto embedding = header.tensors.find("token_embd.weight");
  if (embedding == header.tensors.end() || embedding->second.shape.size() != 2) {
    metadata.Fail("token_embd.weight", "must be a tensor of two dimensions");
    return 0;
  }
  const int64_t rows = embedding->second.shape[0];
  const auto stated = metadata.OptionalInteger(prefix + gguf_key::kVocabulary, 1, kMaxSize);
  if (stated && *stated != rows) {
    metadata.Fail(prefix + gguf_key::kVocabulary, "is not the number of rows of token_embd.weight");
  }
  if (tokenizer.vocab_size > rows) {
    metadata.Fail(gguf_key::kTokens, "has more entries than token_embd.weight has rows");
  }
  return rows;
}

int64_t ReadHeadDim(GgufMetadata& metadata, const std::string& prefix, int64_t model_dim,
                    int64_t heads) {
  const auto key = metadata.OptionalInteger(prefix + gguf_key::kKeyDim, 1, kMaxSize);
  if (!key && model_dim % heads != 0) {
    metadata.Fail(prefix + gguf_key::kKeyDim,
                  "is missing, and the heads do not divide embedding_length");
  }
  const int64_t head_dim = key.value_or(model_dim / heads);
  for (const char* name : {gguf_key::kValueDim, gguf_key::kRopeDim}) {
    const auto same = metadata.OptionalInteger(prefix + name, 1, kMaxSize);
    if (same && *same != head_dim) {
      metadata.FailUnsupported(prefix + name,
                               absl::StrCat("must be the size of a head, ", head_dim));
    }
  }
  return head_dim;
}

}  // namespace

int64_t GgufQueryScalar(int64_t num_layers, int64_t model_dim, int64_t num_heads,
                        int64_t head_dim) {
  constexpr int64_t kLayersOfLargest = 62;
  return num_layers == kLayersOfLargest ? std::max<int64_t>(1, model_dim / num_heads) : head_dim;
}

bool HasPermutedHeads(std::string_view architecture) {
  const Family* family = FindFamily(architecture);
  return family != nullptr && family->permuted_heads;
}

absl::StatusOr<GgufConfig> MakeConfigJson(GgufMetadata& metadata, const GgufHeader& header,
                                          const GgufTokenizer& tokenizer,
                                          const std::vector<float>& rope_factors) {
  const std::string architecture = metadata.Text(gguf_key::kArchitecture);
  if (!metadata.status().ok()) return metadata.status();
  const Family* found = FindFamily(architecture);
  if (found == nullptr) {
    metadata.FailUnsupported(
        gguf_key::kArchitecture,
        Quoted(architecture) +
            " is not supported, only llama, qwen2, qwen3, qwen3moe, smollm3, gpt-oss and gemma3");
    return metadata.status();
  }
  Family family = *found;
  const std::string prefix = architecture + ".";
  RefuseUnknown(metadata, prefix);
  RefuseExperts(metadata, prefix, family);
  const auto size = [&](const char* name) { return metadata.Integer(prefix + name, 1, kMaxSize); };
  const auto window = metadata.OptionalInteger(prefix + gguf_key::kWindow, 0, kMaxSize);
  if (window.value_or(0) > 0 && architecture == "llama") family = kMistral;
  if (window.value_or(0) == 0 && family.model_type == kGptOss) {
    metadata.Fail(prefix + gguf_key::kWindow, "is missing");
  }

  GgufConfig config;
  config.permuted_heads = family.permuted_heads;
  config.post_norms = family.gemma;
  config.num_query_heads = size(gguf_key::kQueryHeads);
  config.num_kv_heads = metadata.OptionalInteger(prefix + gguf_key::kKvHeads, 1, kMaxSize)
                            .value_or(config.num_query_heads);
  const int64_t model_dim = size(gguf_key::kModelDim);
  const int64_t head_dim = ReadHeadDim(metadata, prefix, model_dim, config.num_query_heads);

  JsonWriter json;
  json.BeginObject();
  json.Key("architectures").BeginArray();
  json.Value(IsEtaModel(metadata) ? kEtaClass : family.class_name);
  json.End();
  WriteEtaFields(metadata, family.model_type, json);
  if (family.model_type != "qwen2") {
    json.Key("attention_bias").Value(HasTensor(header, "blk.0.attn_q.bias"));
  }
  if (tokenizer.bos_id) json.Key("bos_token_id").Value(*tokenizer.bos_id);
  if (tokenizer.eos_id) json.Key("eos_token_id").Value(*tokenizer.eos_id);
  json.Key("head_dim").Value(head_dim);
  if (family.gemma) {
    json.Key("hidden_activation").Value("gelu_pytorch_tanh");
  } else {
    json.Key("hidden_act").Value("silu");
    if (metadata.Has(prefix + gguf_key::kLocalRopeTheta)) {
      metadata.FailUnsupported(prefix + gguf_key::kLocalRopeTheta,
                               "is not supported with this architecture");
    }
  }
  json.Key("hidden_size").Value(model_dim);
  if (family.model_type != kGptOss) {
    json.Key("intermediate_size").Value(size(gguf_key::kFfnDim));
  }
  json.Key("max_position_embeddings").Value(size(gguf_key::kContext));
  json.Key("model_type").Value(IsEtaModel(metadata) ? kEtaModelType : family.model_type);
  if (family.has_experts) WriteExperts(metadata, prefix, family, json);
  if (architecture == "smollm3") {
    json.Key("no_rope_layer_interval").Value(int64_t{kGgufUnrotatedInterval});
  }
  json.Key("num_attention_heads").Value(config.num_query_heads);
  const int64_t num_layers = size(gguf_key::kBlocks);
  json.Key("num_hidden_layers").Value(num_layers);
  json.Key("num_key_value_heads").Value(config.num_kv_heads);
  json.Key("rms_norm_eps").Value(metadata.Real(prefix + gguf_key::kNormEps));
  const bool names_scaling = family.model_type == kGptOss;
  WriteRope(metadata, prefix, {head_dim, rope_factors, names_scaling}, json);
  if (window.value_or(0) > 0) WriteWindow(metadata, prefix, family, num_layers, *window, json);
  if (family.gemma) {
    WriteGemma(metadata, prefix, window.value_or(0), num_layers,
               GgufQueryScalar(num_layers, model_dim, config.num_query_heads, head_dim), json);
  }
  json.Key("tie_word_embeddings").Value(!HasTensor(header, "output.weight"));
  json.Key("vocab_size").Value(ReadVocabSize(metadata, header, prefix, tokenizer));
  json.End();
  if (!metadata.status().ok()) return metadata.status();
  config.json = json.Release();
  return config;
}

}  // namespace eta
