#include "tests/testing/engine/tiny_gguf.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>

#include "tests/testing/engine/gguf_blocks.h"

namespace eta::testing {
namespace {

constexpr uint32_t kVocabSize = 264;

struct Named {
  std::string gguf;
  std::string hugging_face;
  std::vector<uint64_t> dimensions;  // innermost first
  uint32_t permuted_heads = 0;
  uint32_t experts = 0;  // in the stack; a star in the other name is an expert's number
};

std::vector<Named> Tensors(const TinyGgufOptions& o) {
  const uint64_t dim = o.model_dim;
  const uint64_t query = uint64_t{o.num_query_heads} * o.head_dim;
  const uint64_t key = uint64_t{o.num_kv_heads} * o.head_dim;
  const bool permutes = o.architecture == "llama" || o.architecture == "smollm3";
  std::vector<Named> all = {{"token_embd.weight", "model.embed_tokens.weight", {dim, kVocabSize}},
                            {"output_norm.weight", "model.norm.weight", {dim}}};
  if (!o.tied) all.push_back({"output.weight", "lm_head.weight", {dim, kVocabSize}});
  for (uint32_t i = 0; i < o.num_layers; ++i) {
    const auto add = [&](const std::string& gguf, const std::string& hugging_face,
                         std::vector<uint64_t> dimensions, uint32_t heads = 0) {
      all.push_back({"blk." + std::to_string(i) + "." + gguf,
                     "model.layers." + std::to_string(i) + "." + hugging_face,
                     std::move(dimensions), heads});
    };
    add("attn_norm.weight", "input_layernorm.weight", {dim});
    add("attn_q.weight", "self_attn.q_proj.weight", {dim, query}, permutes ? o.num_query_heads : 0);
    add("attn_k.weight", "self_attn.k_proj.weight", {dim, key}, permutes ? o.num_kv_heads : 0);
    add("attn_v.weight", "self_attn.v_proj.weight", {dim, key});
    const bool gpt_oss = o.architecture == "gpt-oss";
    if (gpt_oss) {
      add("attn_output.bias", "self_attn.o_proj.bias", {dim});
      add("attn_sinks.weight", "self_attn.sinks", {o.num_query_heads});
    }
    if (o.architecture == "qwen2" || gpt_oss) {
      add("attn_q.bias", "self_attn.q_proj.bias", {query});
      add("attn_k.bias", "self_attn.k_proj.bias", {key});
      add("attn_v.bias", "self_attn.v_proj.bias", {key});
    }
    const bool gemma = o.architecture == "gemma3";
    if (o.architecture.starts_with("qwen3") || gemma) {
      add("attn_q_norm.weight", "self_attn.q_norm.weight", {o.head_dim});
      add("attn_k_norm.weight", "self_attn.k_norm.weight", {o.head_dim});
    }
    add("attn_output.weight", "self_attn.o_proj.weight", {query, dim});
    if (gemma) {
      add("post_attention_norm.weight", "post_attention_layernorm.weight", {dim});
      add("ffn_norm.weight", "pre_feedforward_layernorm.weight", {dim});
      add("post_ffw_norm.weight", "post_feedforward_layernorm.weight", {dim});
    } else {
      add(gpt_oss ? "post_attention_norm.weight" : "ffn_norm.weight",
          "post_attention_layernorm.weight", {dim});
    }
    if (o.architecture == "qwen3moe" || gpt_oss) {
      const uint64_t width = o.expert_ffn_dim;
      add("ffn_gate_inp.weight", "mlp.gate.weight", {dim, o.num_experts});
      const auto stack = [&](const std::string& name, uint64_t cols, uint64_t rows) {
        add("ffn_" + name + "_exps.weight", "mlp.experts.*." + name + "_proj.weight",
            {cols, rows, o.num_experts});
        all.back().experts = o.num_experts;
        if (!gpt_oss) return;
        add("ffn_" + name + "_exps.bias", "mlp.experts.*." + name + "_proj.bias",
            {rows, o.num_experts});
        all.back().experts = o.num_experts;
      };
      if (gpt_oss) add("ffn_gate_inp.bias", "mlp.gate.bias", {o.num_experts});
      stack("gate", dim, width);
      stack("up", dim, width);
      stack("down", width, dim);
      continue;
    }
    add("ffn_gate.weight", "mlp.gate_proj.weight", {dim, o.ffn_dim});
    add("ffn_up.weight", "mlp.up_proj.weight", {dim, o.ffn_dim});
    add("ffn_down.weight", "mlp.down_proj.weight", {o.ffn_dim, dim});
  }
  return all;
}

// As the conversion to GGUF does: reshape [heads, 2, rows / heads / 2, ...], swap axes 1 and 2.
std::vector<float> Permuted(const std::vector<float>& data, uint64_t rows, uint64_t heads) {
  const uint64_t width = data.size() / rows;
  const uint64_t half = rows / heads / 2;
  std::vector<float> out;
  for (uint64_t h = 0; h < heads; ++h) {
    for (uint64_t j = 0; j < half; ++j) {
      for (uint64_t s = 0; s < 2; ++s) {
        const auto row =
            data.begin() + static_cast<ptrdiff_t>((h * 2 * half + s * half + j) * width);
        out.insert(out.end(), row, row + static_cast<ptrdiff_t>(width));
      }
    }
  }
  return out;
}

void SetVocabulary(GgufWriter& file) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<float> scores = {0, 0, 0};
  std::vector<int32_t> types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    tokens.emplace_back(name);
    scores.push_back(0);
    types.push_back(6);
  }
  for (const char* piece : {"t", "h", "th", "\xE2\x96\x81", "\xE2\x96\x81th"}) {
    scores.push_back(-static_cast<float>(tokens.size()));
    tokens.emplace_back(piece);
    types.push_back(1);
  }
  file.Set("tokenizer.ggml.model", "llama");
  file.Set("tokenizer.ggml.tokens", tokens);
  file.Set("tokenizer.ggml.scores", scores);
  file.Set("tokenizer.ggml.token_type", types);
  file.Set("tokenizer.ggml.bos_token_id", uint32_t{1});
  file.Set("tokenizer.ggml.eos_token_id", uint32_t{2});
  file.Set("tokenizer.ggml.unknown_token_id", uint32_t{0});
}

// GPT-2's letter for a byte, in UTF-8.
std::string ByteLetter(int byte) {
  int code = byte;
  if (byte <= 32 || (byte >= 127 && byte <= 160) || byte == 173) {
    int before = 0;
    for (int b = 0; b < byte; ++b) before += b <= 32 || (b >= 127 && b <= 160) || b == 173;
    code = 256 + before;
  }
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

}  // namespace

TinyGguf::TinyGguf(const TinyGgufOptions& o) {
  const std::string prefix = o.architecture + ".";
  file.Set("general.architecture", o.architecture);
  file.Set("general.name", "tiny");
  file.Set(prefix + "block_count", o.num_layers);
  file.Set(prefix + "context_length", uint32_t{1024});
  file.Set(prefix + "embedding_length", o.model_dim);
  file.Set(prefix + "feed_forward_length", o.ffn_dim);
  file.Set(prefix + "attention.head_count", o.num_query_heads);
  file.Set(prefix + "attention.head_count_kv", o.num_kv_heads);
  file.Set(prefix + "attention.key_length", o.head_dim);
  file.Set(prefix + "attention.layer_norm_rms_epsilon", 1e-5f);
  file.Set(prefix + "rope.freq_base", 10000.0f);
  if (o.architecture == "gpt-oss") {
    file.Set(prefix + "attention.sliding_window", uint32_t{20});
    file.Set(prefix + "rope.scaling.type", "yarn");
    file.Set(prefix + "rope.scaling.factor", 8.0f);
    file.Set(prefix + "rope.scaling.original_context_length", uint32_t{128});
  }
  if (o.architecture == "qwen3moe" || o.architecture == "gpt-oss") {
    file.Set(prefix + "expert_count", o.num_experts);
    file.Set(prefix + "expert_used_count", uint32_t{2});
    file.Set(prefix + "expert_feed_forward_length", o.expert_ffn_dim);
  }
  if (o.architecture == "gemma3") file.Set(prefix + "attention.sliding_window", uint32_t{40});
  SetVocabulary(file);

  std::mt19937 random(o.seed);
  for (const Named& named : Tensors(o)) {
    uint64_t count = 1;
    for (const uint64_t size : named.dimensions) count *= size;
    std::normal_distribution<float> normal(
        0.0f, 1.0f / std::sqrt(static_cast<float>(named.dimensions.front())));
    std::vector<float> data;
    for (uint64_t i = 0; i < count; ++i) data.push_back(normal(random));
    if (named.gguf.find("norm") != std::string::npos) data.assign(count, 1.0f);
    if (named.experts == 0) tensors[named.hugging_face] = data;
    if (o.architecture == "gemma3" && named.gguf.find("norm") != std::string::npos) {
      tensors[named.hugging_face].assign(count, 0.0f);  // the file has its 1 in them
    }
    const auto size = static_cast<ptrdiff_t>(count / std::max(1u, named.experts));
    for (uint32_t e = 0; e < named.experts; ++e) {
      std::string name = named.hugging_face;
      name.replace(name.find('*'), 1, std::to_string(e));
      tensors[name].assign(data.begin() + e * size, data.begin() + (e + 1) * size);
    }
    const std::vector<float> stored =
        named.permuted_heads == 0 ? data
                                  : Permuted(data, named.dimensions.back(), named.permuted_heads);
    file.tensors.push_back(
        {named.gguf, named.dimensions, 0,
         std::string(reinterpret_cast<const char*>(stored.data()), stored.size() * sizeof(float)),
         std::nullopt});
  }
}

void UseBlocks(GgufWriter& file, const std::string& name, GgmlType type) {
  GgufWriter::Tensor& tensor = file.At(name);
  const uint64_t width = tensor.dimensions.front();
  uint64_t blocks = width / LayoutOf(type).block_elements;
  for (size_t i = 1; i < tensor.dimensions.size(); ++i) blocks *= tensor.dimensions[i];
  std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>()(name)));
  const std::vector<std::byte> data =
      GgufBlocks(type, blocks, 1.0f / std::sqrt(static_cast<float>(width)), random);
  tensor.type = static_cast<uint32_t>(type);
  tensor.data.assign(reinterpret_cast<const char*>(data.data()), data.size());
}

void UseBlocks(GgufWriter& file, std::span<const GgmlType> types) {
  size_t next = 0;
  for (const GgufWriter::Tensor& tensor : file.tensors) {
    if (tensor.dimensions.size() < 2) continue;
    UseBlocks(file, tensor.name, types[next++ % types.size()]);
  }
}

void UseByteLevelVocabulary(GgufWriter& file) {
  std::vector<std::string> tokens = {"<|pad|>", "<s>", "</s>"};
  std::vector<int32_t> types = {3, 3, 3};
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(ByteLetter(byte));
  const std::string space = ByteLetter(' ');
  tokens.insert(tokens.end(), {"th", "the", space + "the", "<tool>", "<|im_end|>"});
  types.resize(tokens.size() - 2, 1);
  types.insert(types.end(), {4, 3});
  file.Set("tokenizer.ggml.model", "gpt2");
  file.Set("tokenizer.ggml.pre", "smollm");
  file.Set("tokenizer.ggml.tokens", tokens);
  file.Set("tokenizer.ggml.token_type", types);
  file.Set("tokenizer.ggml.merges", std::vector<std::string>{"t h", "th e", space + " the"});
  file.Remove("tokenizer.ggml.scores");
  file.Remove("tokenizer.ggml.unknown_token_id");
}

}  // namespace eta::testing
