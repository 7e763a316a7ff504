#include "engine/model/model_fingerprint.h"

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/sha256.h"

namespace eta {
namespace {

// Lines of a name and a value. Numbers that are not whole stand there by their bits.
class Lines {
 public:
  void Add(const std::string& name, int64_t value) {
    absl::StrAppend(&text_, name, " ", value, "\n");
  }
  void Add(const std::string& name, double value) {
    absl::StrAppend(&text_, name, " ", absl::Hex(std::bit_cast<uint64_t>(value)), "\n");
  }
  void Add(const std::string& name, const std::string& value) {
    absl::StrAppend(&text_, name, " ", value, "\n");
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Every field of ModelConfig. A field that is added later stands here only where it is not at its
// default, so that older profiles still fit.
void AddConfig(const ModelConfig& config, Lines& lines) {
  const auto whole = [&lines](const std::string& name, auto value) {
    lines.Add(name, static_cast<int64_t>(value));
  };
  whole("vocab_size", config.vocab_size);
  whole("model_dim", config.model_dim);
  whole("ffn_dim", config.ffn_dim);
  whole("num_layers", config.num_layers);
  whole("num_query_heads", config.num_query_heads);
  whole("num_kv_heads", config.num_kv_heads);
  whole("head_dim", config.head_dim);
  lines.Add("norm_eps", double{config.norm_eps});
  lines.Add("rope_theta", double{config.rope_theta});
  lines.Add("rope_factor", config.rope_scaling.factor);
  lines.Add("rope_low_freq_factor", config.rope_scaling.low_freq_factor);
  lines.Add("rope_high_freq_factor", config.rope_scaling.high_freq_factor);
  whole("rope_original_context", config.rope_scaling.original_context);
  whole("max_context", config.max_context);
  whole("tie_word_embeddings", config.tie_word_embeddings);
  whole("has_predictor", config.has_predictor);
  whole("gate", config.gate);
  lines.Add("beta", double{config.beta});
  whole("block_size", config.block_size);
  whole("bos_id", config.bos_id);
  for (const int32_t id : config.eos_ids) whole("eos_id", id);
  const RopeScaling& rope = config.rope_scaling;
  const RopeScaling none;
  if (rope.type != none.type && rope.type != RopeScalingType::kLlama3) {
    whole("rope_type", rope.type);
  }
  if (rope.ramp_begin != none.ramp_begin) lines.Add("rope_ramp_begin", rope.ramp_begin);
  if (rope.ramp_end != none.ramp_end) lines.Add("rope_ramp_end", rope.ramp_end);
  if (rope.attention_factor != none.attention_factor) {
    lines.Add("rope_attention_factor", rope.attention_factor);
  }
  if (config.sliding_window > 0) whole("sliding_window", config.sliding_window);
  if (config.qkv_bias) whole("qkv_bias", 1);
  if (config.out_bias) whole("out_bias", 1);
  if (config.head_norms) whole("head_norms", 1);
  if (config.sinks) whole("sinks", 1);
  for (int32_t i = 0; i < config.num_layers; ++i) {
    if (!config.layer(i).rotates) whole("unrotated_layer", i);
    if (!config.IsFull(i)) whole("window_layer", i);
    if (config.layer(i).local_rope) whole("local_rope_layer", i);
  }
  if (config.post_norms) whole("post_norms", 1);
  if (config.unit_norms) whole("unit_norms", 1);
  if (config.activation != Activation::kSilu) whole("activation", config.activation);
  if (config.embedding_scale != 1.0f) lines.Add("embedding_scale", double{config.embedding_scale});
  if (config.query_scalar > 0.0) lines.Add("query_scalar", config.query_scalar);
  if (config.local_rope_theta > 0.0f) {
    lines.Add("local_rope_theta", double{config.local_rope_theta});
  }
  if (config.num_experts > 0) {
    whole("num_experts", config.num_experts);
    whole("experts_per_token", config.experts_per_token);
    whole("expert_ffn_dim", config.expert_ffn_dim);
    whole("normalise_experts", config.normalise_experts);
    if (config.expert_biases) whole("expert_biases", 1);
    for (const bool has : config.expert_layers) whole("expert_layer", has);
  }
  ModelConfig usual = config;
  usual.SetAttentionDefaults();
  if (config.index != usual.index) whole("index", config.index);
  if (config.sink_blocks != usual.sink_blocks) whole("sink_blocks", config.sink_blocks);
  if (config.shared_reads != usual.shared_reads) whole("shared_reads", config.shared_reads);
  if (config.temper_special != usual.temper_special) whole("temper_special", 1);
}

}  // namespace

absl::StatusOr<std::string> ModelFingerprint(const ModelConfig& config,
                                             const Checkpoint& checkpoint) {
  Lines lines;
  AddConfig(config, lines);
  const WeightsDigests& weights = checkpoint.weights_digests();
  for (const std::string& digest : weights.weights) lines.Add("weights", digest);
  lines.Add("tokenizer", checkpoint.tokenizer_fingerprint());
  if (!weights.index_metric.empty()) lines.Add("index_metric", weights.index_metric);
  return Sha256Hex(lines.text());
}

}  // namespace eta
