// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/gguf/gguf_config.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/input_file.h"
#include "engine/base/json/json_writer.h"
#include "engine/checkpoint/gguf/gguf_eta.h"
#include "engine/checkpoint/gguf/gguf_rope.h"

namespace eta {
namespace {

constexpr char kArchitecture[] = "general.architecture";
constexpr int64_t kMaxSize = int64_t{1} << 24;

// Behind "llama." and the like. One that is not here would change the model in a way that nobody
// here knows.
constexpr std::string_view kKnownKeys[] = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_count",
    "expert_shared_count",
    "expert_used_count",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "tensor_data_layout",
    "vocab_size",
};

// 0 says that there is none of it, as files of several writers do; any other number would change
// the model.
constexpr std::string_view kZeroKeys[] = {
    "attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale", "attn_logit_softcapping",
    "embedding_scale",     "final_logit_softcapping",  "logit_scale",     "residual_scale",
};

struct Family {
  std::string_view architecture;  // of the GGUF file
  std::string_view model_type;    // of config.json
  std::string_view class_name;
};
constexpr Family kFamilies[] = {
    {"llama", "llama", "LlamaForCausalLM"},
    {"qwen2", "qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "qwen3", "Qwen3ForCausalLM"},
};
constexpr Family kMistral = {"llama", "mistral", "MistralForCausalLM"};

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
  for (const char* name : {"expert_count", "expert_shared_count", "expert_used_count"}) {
    const auto experts = metadata.OptionalInteger(prefix + name, 0, kMaxSize);
    if (experts.value_or(0) != 0) metadata.FailUnsupported(prefix + name, "is not supported");
  }
  // Of the order of q_proj and k_proj; both that were ever written mean the same.
  metadata.OptionalText(prefix + "tensor_data_layout");
  if (metadata.OptionalInteger("split.count", 0, kMaxSize).value_or(1) > 1) {
    metadata.FailUnsupported("split.count", "over 1 is not supported: join the files first");
  }
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
  const auto stated = metadata.OptionalInteger(prefix + "vocab_size", 1, kMaxSize);
  if (stated && *stated != rows) {
    metadata.Fail(prefix + "vocab_size", "is not the number of rows of token_embd.weight");
  }
  if (tokenizer.vocab_size > rows) {
    metadata.Fail("tokenizer.ggml.tokens", "has more entries than token_embd.weight has rows");
  }
  return rows;
}

int64_t ReadHeadDim(GgufMetadata& metadata, const std::string& prefix, int64_t model_dim,
                    int64_t heads) {
  const auto key = metadata.OptionalInteger(prefix + "attention.key_length", 1, kMaxSize);
  if (!key && model_dim % heads != 0) {
    metadata.Fail(prefix + "attention.key_length",
                  "is missing, and the heads do not divide embedding_length");
  }
  const int64_t head_dim = key.value_or(model_dim / heads);
  for (const char* name : {"attention.value_length", "rope.dimension_count"}) {
    const auto same = metadata.OptionalInteger(prefix + name, 1, kMaxSize);
    if (same && *same != head_dim) {
      metadata.FailUnsupported(prefix + name,
                               absl::StrCat("must be the size of a head, ", head_dim));
    }
  }
  return head_dim;
}

}  // namespace

absl::StatusOr<GgufConfig> MakeConfigJson(GgufMetadata& metadata, const GgufHeader& header,
                                          const GgufTokenizer& tokenizer,
                                          const std::vector<float>& rope_factors) {
  const std::string architecture = metadata.Text(kArchitecture);
  if (!metadata.status().ok()) return metadata.status();
  const auto* found =
      std::find_if(std::begin(kFamilies), std::end(kFamilies),
                   [&](const Family& family) { return family.architecture == architecture; });
  if (found == std::end(kFamilies)) {
    metadata.FailUnsupported(
        kArchitecture, Quoted(architecture) + " is not supported, only llama, qwen2 and qwen3");
    return metadata.status();
  }
  Family family = *found;
  const std::string prefix = architecture + ".";
  RefuseUnknown(metadata, prefix);
  const auto size = [&](const char* name) { return metadata.Integer(prefix + name, 1, kMaxSize); };
  const auto window = metadata.OptionalInteger(prefix + "attention.sliding_window", 0, kMaxSize);
  if (window.value_or(0) > 0 && architecture == "llama") {
    family = kMistral;
  } else if (window.value_or(0) > 0) {
    metadata.FailUnsupported(prefix + "attention.sliding_window",
                             "is not supported with this architecture");
  }

  GgufConfig config;
  config.permuted_heads = architecture == "llama";
  config.num_query_heads = size("attention.head_count");
  config.num_kv_heads = metadata.OptionalInteger(prefix + "attention.head_count_kv", 1, kMaxSize)
                            .value_or(config.num_query_heads);
  const int64_t model_dim = size("embedding_length");
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
  json.Key("hidden_act").Value("silu");
  json.Key("hidden_size").Value(model_dim);
  json.Key("intermediate_size").Value(size("feed_forward_length"));
  json.Key("max_position_embeddings").Value(size("context_length"));
  json.Key("model_type").Value(IsEtaModel(metadata) ? kEtaModelType : family.model_type);
  json.Key("num_attention_heads").Value(config.num_query_heads);
  json.Key("num_hidden_layers").Value(size("block_count"));
  json.Key("num_key_value_heads").Value(config.num_kv_heads);
  json.Key("rms_norm_eps").Value(metadata.Real(prefix + "attention.layer_norm_rms_epsilon"));
  WriteRope(metadata, prefix, head_dim, rope_factors, json);
  if (family.model_type == "mistral") json.Key("sliding_window").Value(*window);
  json.Key("tie_word_embeddings").Value(!HasTensor(header, "output.weight"));
  json.Key("vocab_size").Value(ReadVocabSize(metadata, header, prefix, tokenizer));
  json.End();
  if (!metadata.status().ok()) return metadata.status();
  config.json = json.Release();
  return config;
}

}  // namespace eta
