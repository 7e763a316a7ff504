#include "tests/testing/engine/tiny_model.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "engine/model/model_config.h"
#include "engine/model/weights/index_metric.h"
#include "nlohmann/json.hpp"

namespace eta::testing {
namespace {

constexpr int32_t kVocabSize = 8192;  // of the embedded model's tokenizer

nlohmann::json Config(const TinyModelOptions& o) {
  nlohmann::json config = {{"model_type", o.has_predictor ? "eta" : "llama"},
                           {"vocab_size", kVocabSize},
                           {"hidden_size", o.model_dim},
                           {"intermediate_size", o.ffn_dim},
                           {"num_hidden_layers", o.num_layers},
                           {"num_attention_heads", o.num_query_heads},
                           {"num_key_value_heads", o.num_kv_heads},
                           {"head_dim", o.head_dim},
                           {"rms_norm_eps", 1e-5},
                           {"rope_theta", 10000.0},
                           {"max_position_embeddings", o.max_context},
                           {"tie_word_embeddings", o.tied},
                           {"hidden_act", "silu"},
                           {"bos_token_id", 1},
                           {"eos_token_id", 2},
                           {"eta_block_size", o.block_size}};
  if (!o.model_type.empty()) {
    config["model_type"] = o.model_type;
    config["attention_bias"] = o.attention_bias;
    config["sliding_window"] = nullptr;
    if (o.sliding_window) config["sliding_window"] = *o.sliding_window;
    if (!o.window_layers.empty()) {
      config["use_sliding_window"] = true;
      config["layer_types"] = nlohmann::json::array();
      for (const bool slides : o.window_layers) {
        config["layer_types"].push_back(slides ? "sliding_attention" : "full_attention");
      }
    }
    if (o.model_type == "gemma3_text") {
      config.erase("hidden_act");
      config["query_pre_attn_scalar"] = o.head_dim;
      if (!o.sliding_window) config.erase("sliding_window");
    }
    if (o.model_type == "gpt_oss") {
      config["rope_scaling"] = {{"rope_type", "yarn"},
                                {"factor", 2.0},
                                {"original_max_position_embeddings", o.max_context / 2}};
    }
    if (o.no_rope_layer_interval) config["no_rope_layer_interval"] = *o.no_rope_layer_interval;
  } else if (o.has_predictor) {
    config["eta_beta"] = 5.0;
    config["eta_gate"] = "silu";
  }
  if (o.num_experts > 0) {
    config["num_experts"] = o.num_experts;
    config["num_experts_per_tok"] = o.experts_per_token;
    config["moe_intermediate_size"] = o.expert_ffn_dim;
    config["norm_topk_prob"] = o.normalise_experts;
    config["mlp_only_layers"] = nlohmann::json::array();
    for (int32_t i = o.num_layers - o.dense_layers; i < o.num_layers; ++i) {
      config["mlp_only_layers"].push_back(i);
    }
  }
  if (o.index) config["eta_index"] = *o.index;
  if (o.sink_blocks) config["eta_sink_blocks"] = *o.sink_blocks;
  if (o.reads) config["eta_reads"] = *o.reads;
  if (o.special_keys) config["eta_special_keys"] = *o.special_keys;
  return config;
}

std::vector<std::byte> Stored(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * SizeOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    StoreElement(dtype, bytes.data(), static_cast<int64_t>(i), values[i]);
  }
  return bytes;
}

// Writes one file, or distributes the tensors over `num_shards` files in turn.
void Write(const std::string& folder, const std::map<std::string, TensorToWrite>& tensors,
           int32_t num_shards) {
  if (num_shards == 1) {
    if (!WriteSafetensors(folder + "/model.safetensors", {}, tensors).ok()) std::abort();
    return;
  }
  std::map<std::string, std::map<std::string, TensorToWrite>> shards;
  nlohmann::json index;
  int32_t next = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::string file = "model-" + std::to_string(next++ % num_shards) + ".safetensors";
    shards[file][name] = tensor;
    index["weight_map"][name] = file;
  }
  for (const auto& [file, part] : shards) {
    if (!WriteSafetensors(folder + "/" + file, {}, part).ok()) std::abort();
  }
  std::ofstream(folder + "/model.safetensors.index.json") << index.dump();
}

// Of each KV head a metric A A^T of small rank and a centre, all random.
void WriteIndexMetric(const std::string& folder, const ModelConfig& config, std::mt19937& random) {
  constexpr int kRank = 3;
  std::normal_distribution<float> normal;
  const auto d = static_cast<size_t>(config.head_dim);
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, TensorToWrite> tensors;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    std::vector<float>& metric = values[IndexMetricName(layer)];
    std::vector<float>& centre = values[IndexCentreName(layer)];
    for (int32_t head = 0; head < config.num_kv_heads; ++head) {
      std::vector<float> factor(kRank * d);
      for (float& value : factor) value = normal(random);
      for (size_t i = 0; i < d; ++i) {
        centre.push_back(0.3f * normal(random));
        for (size_t j = 0; j < d; ++j) {
          float sum = 0.0f;
          for (size_t k = 0; k < kRank; ++k) sum += factor[k * d + i] * factor[k * d + j];
          metric.push_back(sum);
        }
      }
    }
    tensors[IndexMetricName(layer)] = {DType::kFloat32,
                                       {config.num_kv_heads, config.head_dim, config.head_dim},
                                       std::as_bytes(std::span(metric))};
    tensors[IndexCentreName(layer)] = {
        DType::kFloat32, {config.num_kv_heads, config.head_dim}, std::as_bytes(std::span(centre))};
  }
  if (!WriteSafetensors(folder + "/index_metric.safetensors", {}, tensors).ok()) std::abort();
}

}  // namespace

const char kTinyChatTemplate[] =
    "{{ bos_token }}{% if style %}{{ style }}\n{% endif %}{% for message in messages %}"
    "{% if message['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('a system message must be the first, not: ' + message['content']) }}"
    "{% endif %}"
    "{{ message['role'] + ': ' }}{{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}";

TinyModel::TinyModel(const TinyModelOptions& options) {
  std::string pattern = (std::filesystem::temp_directory_path() / "eta-tiny-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) std::abort();
  path_ = pattern;
  const std::string json = Config(options).dump();
  std::ofstream(path_ + "/config.json") << json;
  if (options.tokenizer_json) {
    std::ofstream(path_ + "/tokenizer.json") << *options.tokenizer_json;
  } else {
    std::filesystem::copy_file(std::string(ETA_SOURCE_DIR) + "/models/eta-27m/tokenizer.model",
                               path_ + "/tokenizer.model");
  }
  if (options.chat_template) {
    std::ofstream(path_ + "/chat_template.jinja") << *options.chat_template;
  }
  if (options.generation_config) {
    std::ofstream(path_ + "/generation_config.json") << *options.generation_config;
  }

  std::mt19937 random(options.seed);
  std::map<std::string, std::vector<std::byte>> stored;
  std::map<std::string, TensorToWrite> tensors;
  for (const auto& [name, shape] : ExpectedTensors(*ParseModelConfig(json))) {
    size_t count = 1;
    for (const int64_t size : shape) count *= static_cast<size_t>(size);
    std::vector<float> data(count);
    // Projections keep the scale of their input. Those of queries and routers are larger, so that
    // scores spread.
    const bool spreads =
        name.find("q_proj") != std::string::npos || name.find("mlp.gate.") != std::string::npos;
    const float scale = spreads ? 2.5f : 1.0f;
    std::normal_distribution<float> normal(0.0f,
                                           scale / std::sqrt(static_cast<float>(shape.back())));
    for (float& value : data) value = normal(random);
    if (name.find("norm") != std::string::npos) data.assign(count, 1.0f);
    if (name.find("tau_proj.bias") != std::string::npos) data.assign(count, options.threshold_bias);
    if (name == "model.embed_tokens.weight" && options.nan_embedding) {
      const auto row = static_cast<size_t>(*options.nan_embedding) * static_cast<size_t>(shape[1]);
      data[row] = std::numeric_limits<float>::quiet_NaN();
    }
    if (options.coarse_weights) {
      for (float& value : data) {
        value = RoundTo(DType::kFloat16, RoundTo(DType::kBFloat16, value));
      }
    }
    stored[name] = Stored(options.dtype, data);
    tensors[name] = {options.dtype, shape, stored[name]};
  }
  Write(path_, tensors, options.shards);
  if (options.index_metric) WriteIndexMetric(path_, *ParseModelConfig(json), random);
}

TinyModel::~TinyModel() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace eta::testing
