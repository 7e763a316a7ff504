// A small random ETA checkpoint in a folder of its own, for tests of everything above the kernels:
// the tokenizer of the embedded model, a few thousand parameters per layer, text without meaning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/dtype.h"

namespace eta::testing {

struct TinyModelOptions {
  int32_t num_layers = 2;
  int32_t model_dim = 64;
  int32_t ffn_dim = 96;
  int32_t num_query_heads = 4;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 32;
  int32_t block_size = 16;
  int32_t max_context = 1024;
  bool has_predictor = true;  // false: a plain LLaMA checkpoint
  // A family that predicts nothing, instead; "" is eta or llama by has_predictor. With
  // `attention_bias` where the family reads it.
  std::string model_type;
  bool attention_bias = false;
  std::optional<int32_t> sliding_window;
  // By layer, of families whose config.json says so; empty: the family's rule.
  std::vector<bool> window_layers;
  std::optional<int32_t> no_rope_layer_interval;  // of model_type smollm3
  // With model_type qwen3_moe: in every layer but the last `dense_layers`.
  int32_t num_experts = 0;
  int32_t experts_per_token = 2;
  int32_t expert_ffn_dim = 48;
  bool normalise_experts = true;
  int32_t dense_layers = 0;
  // Fields of the same names in config.json, after "eta_"; absent: they are not there.
  std::optional<std::string> index;
  std::optional<int32_t> sink_blocks;
  std::optional<std::string> reads;
  std::optional<std::string> special_keys;
  bool index_metric = false;  // with an index_metric.safetensors
  bool tied = true;
  float threshold_bias = 1.5f;           // the predicted thresholds lie around it
  std::optional<int32_t> nan_embedding;  // the row of this token is NaN (needs tied = false)
  uint32_t seed = 1;
  bool coarse_weights = false;               // values that float16 and bfloat16 both hold exactly
  DType dtype = DType::kFloat32;             // of the file: float32, float16 or bfloat16
  int32_t shards = 1;                        // above 1: that many files and an index
  std::optional<std::string> chat_template;  // chat_template.jinja
  std::optional<std::string> generation_config;  // generation_config.json
  // tokenizer.json, instead of the embedded model's tokenizer.model.
  std::optional<std::string> tokenizer_json;
};

// A chat template for it: "<s>user: Hello</s>assistant:", the two being tokens. It refuses a
// system message that is not the first one. Its variable `style` comes before all, as text.
extern const char kTinyChatTemplate[];

// A folder under the system's temporary directory, removed when this object goes.
class TinyModel {
 public:
  explicit TinyModel(const TinyModelOptions& options = {});
  ~TinyModel();
  TinyModel(const TinyModel&) = delete;
  TinyModel& operator=(const TinyModel&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace eta::testing
