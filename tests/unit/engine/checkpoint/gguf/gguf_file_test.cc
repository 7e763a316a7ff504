#include "engine/checkpoint/gguf/gguf_file.h"

#include <cmath>
#include <cstring>

#include "engine/checkpoint/gguf/gguf_rope.h"
#include "engine/checkpoint/gguf/gguf_tensor_names.h"
#include "engine/model/model_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/gguf_blocks.h"
#include "tests/testing/engine/tiny_gguf.h"

namespace eta {
namespace {

using eta::testing::TinyGguf;
using eta::testing::TinyGgufOptions;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class GgufFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<GgufFile> Open(const GgufWriter& file) const {
    return GgufFile::Open(folder_.Write("tiny.gguf", file.Serialize()));
  }
  Json Config(const GgufWriter& file) const {
    const auto opened = Open(file);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? Json::parse(opened->texts().config_json) : Json();
  }
  void ExpectError(const GgufWriter& file, absl::StatusCode code,
                   const std::string& sentence) const {
    const absl::Status status = Open(file).status();
    EXPECT_THAT(status, FailsSaying(code, sentence));
    EXPECT_THAT(std::string(status.message()), HasSubstr("file 'tiny.gguf'"));
  }

  TempFolder folder_;
};

std::vector<float> Floats(const absl::StatusOr<std::vector<std::byte>>& bytes) {
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  if (!bytes.ok()) return {};
  std::vector<float> floats(bytes->size() / sizeof(float));
  std::memcpy(floats.data(), bytes->data(), bytes->size());
  return floats;
}

TEST_F(GgufFileTest, TensorsHaveHuggingFacesNamesAndOrder) {
  for (const char* architecture : {"llama", "qwen2", "qwen3", "qwen3moe", "smollm3", "gpt-oss"}) {
    SCOPED_TRACE(architecture);
    const TinyGguf tiny({.architecture = architecture});
    const auto file = Open(tiny.file);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_EQ(file->tensors().size(), tiny.tensors.size());
    for (const auto& [name, data] : tiny.tensors) {
      ASSERT_TRUE(file->tensors().contains(name)) << name;
      EXPECT_EQ(Floats(file->Read(name)), data) << name;
      EXPECT_EQ(file->tensors().at(name).bytes(), data.size() * sizeof(float));
    }
    EXPECT_EQ(file->Read("blk.0.attn_q.weight").status().code(), absl::StatusCode::kNotFound);
  }
}

TEST_F(GgufFileTest, TheConfigIsHuggingFaces) {
  const TinyGguf tiny({.num_layers = 3});
  EXPECT_EQ(Config(tiny.file), Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 1,
    "eos_token_id": 2, "head_dim": 32, "hidden_act": "silu", "hidden_size": 64,
    "intermediate_size": 96, "max_position_embeddings": 1024, "model_type": "llama",
    "num_attention_heads": 4, "num_hidden_layers": 3, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false,
    "vocab_size": 264})"));
  EXPECT_EQ(Config(TinyGguf({.tied = true}).file)["tie_word_embeddings"], true);
  EXPECT_EQ(Config(TinyGguf({.architecture = "qwen2"}).file)["model_type"], "qwen2");
  EXPECT_EQ(Config(TinyGguf({.architecture = "qwen3"}).file)["model_type"], "qwen3");
}

// There is no key for the layers without RoPE.
TEST_F(GgufFileTest, EveryFourthLayerOfASmolLM3HasNoRope) {
  for (const bool tied : {false, true}) {
    const Json config =
        Config(TinyGguf({.architecture = "smollm3", .tied = tied, .num_layers = 5}).file);
    EXPECT_EQ(config["architectures"][0], "SmolLM3ForCausalLM");
    EXPECT_EQ(config["model_type"], "smollm3");
    EXPECT_EQ(config["no_rope_layer_interval"], 4);
    EXPECT_EQ(config["tie_word_embeddings"], tied);
    EXPECT_EQ(config["rope_theta"], 10000.0);
    const auto parsed = ParseModelConfig(config.dump());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(parsed->layer(i).rotates, i != 3) << i;
  }
}

TEST_F(GgufFileTest, WhatAFileMayLeaveOut) {
  TinyGguf tiny;
  tiny.file.Remove("llama.attention.head_count_kv");
  EXPECT_EQ(Config(tiny.file)["num_key_value_heads"], 4);
  tiny = TinyGguf({.num_kv_heads = 4, .head_dim = 16});
  for (const char* key : {"llama.attention.head_count_kv", "llama.attention.key_length",
                          "llama.rope.freq_base", "tokenizer.ggml.bos_token_id"}) {
    tiny.file.Remove(key);
  }
  const Json config = Config(tiny.file);
  EXPECT_EQ(config["head_dim"], 16);
  EXPECT_EQ(config["rope_theta"], 10000.0);
  EXPECT_FALSE(config.contains("bos_token_id"));
}

TEST_F(GgufFileTest, ASlidingWindowIsMistrals) {
  TinyGguf tiny;
  tiny.file.Set("llama.attention.sliding_window", uint32_t{512});
  const Json config = Config(tiny.file);
  EXPECT_EQ(config["model_type"], "mistral");
  EXPECT_EQ(config["sliding_window"], 512);
  tiny.file.Set("llama.attention.sliding_window", uint32_t{0});
  EXPECT_EQ(Config(tiny.file)["model_type"], "llama");
}

// bad input: Models | GGUF: a window's pattern of another length or type, or of an architecture
//   whose layers are alike | INVALID_ARGUMENT, or UNIMPLEMENTED; the key named
TEST_F(GgufFileTest, AWindowIsOfTheLayersOfItsPattern) {
  const std::string key = "qwen2.attention.sliding_window";
  TinyGguf qwen({.architecture = "qwen2", .num_layers = 4});
  qwen.file.Set(key, uint32_t{512});
  const auto windows = [&] {
    const auto config = ParseModelConfig(Config(qwen.file).dump());
    EXPECT_TRUE(config.ok()) << config.status();
    std::vector<int32_t> by_layer;
    for (int32_t i = 0; config.ok() && i < 4; ++i) by_layer.push_back(config->layer(i).window);
    return by_layer;
  };
  EXPECT_EQ(windows(), (std::vector<int32_t>{512, 512, 512, 512}));
  qwen.file.Set(key + "_pattern", uint32_t{3});
  EXPECT_EQ(windows(), (std::vector<int32_t>{512, 512, 0, 512})) << "the last of three is full";
  qwen.file.Set(key + "_pattern", uint32_t{0});
  EXPECT_EQ(windows(), (std::vector<int32_t>{512, 512, 512, 512}));
  qwen.file.Set(key + "_pattern", std::vector<bool>{true, false, false, true});
  EXPECT_EQ(windows(), (std::vector<int32_t>{512, 0, 0, 512}));
  qwen.file.Set(key + "_pattern", std::vector<bool>{true, false, false});
  ExpectError(qwen.file, kInvalid, "'" + key + "_pattern' must have an entry for each of 4 layers");
  qwen.file.Set(key + "_pattern", std::vector<int32_t>{1, 0, 0, 1});
  ExpectError(qwen.file, kInvalid, "'" + key + "_pattern' must be a list of true and false");
  qwen.file.Set(key + "_pattern", 2.0f);
  ExpectError(qwen.file, kInvalid, "'" + key + "_pattern'");
  qwen.file.Set(key, uint32_t{0});
  EXPECT_FALSE(Config(qwen.file).contains("sliding_window")) << "no window, and no pattern of it";

  TinyGguf mistral({.num_layers = 2});
  mistral.file.Set("llama.attention.sliding_window", uint32_t{512});
  mistral.file.Set("llama.attention.sliding_window_pattern", std::vector<bool>{true, true});
  EXPECT_EQ(Config(mistral.file)["model_type"], "mistral");
  mistral.file.Set("llama.attention.sliding_window_pattern", std::vector<bool>{true, false});
  ExpectError(mistral.file, kUnimplemented, "'llama.attention.sliding_window_pattern'");
}

TEST_F(GgufFileTest, QuantisedRowsAreFloatsInTheRightOrder) {
  const TinyGguf exact;
  TinyGguf tiny;
  // Q8_0 of rows of 64: scale 1/64, so that what is unpacked is known.
  auto& query = tiny.file.At("blk.0.attn_q.weight");
  query.type = 8;
  query.data.clear();
  for (int block = 0; block < 128 * 2; ++block) {
    query.data += std::string("\x00\x24", 2);
    for (int i = 0; i < 32; ++i) query.data += static_cast<char>(block / 2);
  }
  const auto file = Open(tiny.file).value();
  const std::vector<float> rows = Floats(file.Read("model.layers.0.self_attn.q_proj.weight"));
  ASSERT_EQ(rows.size(), 128u * 64u);
  // Row h, s, j of [heads, 2, 16] is row h, j, s of the file.
  for (int row = 0; row < 128; ++row) {
    const int stored = row / 32 * 32 + row % 16 * 2 + row % 32 / 16;
    EXPECT_EQ(rows[row * 64], static_cast<float>(static_cast<int8_t>(stored)) / 64.0f) << row;
  }
}

// Rows of heads are whole rows of blocks, so that they are put in order without unpacking.
TEST_F(GgufFileTest, StoredBlocksAreThoseOfTheFileInTheRightOrder) {
  for (const GgmlType type : testing::kBlockTypes) {
    const GgmlLayout layout = testing::LayoutOf(type);
    SCOPED_TRACE(layout.name);
    TinyGguf tiny({.num_layers = 1, .model_dim = 256, .ffn_dim = 256, .head_dim = 64});
    testing::UseBlocks(tiny.file, std::span(&type, 1));
    const auto file = Open(tiny.file).value();
    for (const auto& [name, info] : file.tensors()) {
      SCOPED_TRACE(name);
      const auto stored = file.ReadStored(name);
      ASSERT_TRUE(stored.ok()) << stored.status();
      const auto numbers = file.Read(name).value();
      ASSERT_EQ(stored->blocks.has_value(), info.shape.size() == 2);
      if (!stored->blocks) {
        EXPECT_EQ(stored->bytes, numbers);
        continue;
      }
      EXPECT_EQ(stored->blocks->type, type);
      EXPECT_EQ(stored->bytes.size(),
                numbers.size() / sizeof(float) / layout.block_elements * layout.block_bytes);
      std::vector<std::byte> unpacked(numbers.size());
      UnpackBlocks(layout, stored->bytes, unpacked);
      EXPECT_EQ(unpacked, numbers);
    }
  }
}

TEST_F(GgufFileTest, StoredNumbersOfSixteenBitsAreNoBlocks) {
  TinyGguf tiny;
  auto& query = tiny.file.At("blk.0.attn_q.weight");
  query.type = static_cast<uint32_t>(GgmlType::kF16);
  query.data.resize(query.data.size() / 2);
  const auto file = Open(tiny.file).value();
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  const auto stored = file.ReadStored(name).value();
  EXPECT_FALSE(stored.blocks);
  EXPECT_EQ(stored.bytes, file.Read(name).value());
  EXPECT_EQ(file.ReadStored("blk.0.attn_q.weight").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(GgufFileTest, TensorsOverAPieceOfTheFileAreWhole) {
  TinyGguf tiny({.num_layers = 1, .ffn_dim = 8192});
  const auto file = Open(tiny.file).value();
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  ASSERT_GT(file.tensors().at(name).bytes(), uint64_t{1} << 20);
  EXPECT_EQ(Floats(file.Read(name)), tiny.tensors.at(name));
}

// bad input: GGUF | unknown architecture, keys or tensors; experts of architecture llama |
//   UNIMPLEMENTED, named
TEST_F(GgufFileTest, WhatIsNotKnownIsRefusedByName) {
  const auto with = [](const std::function<void(GgufWriter&)>& change) {
    TinyGguf tiny;
    change(tiny.file);
    return tiny.file;
  };
  ExpectError(with([](auto& f) { f.Set("general.architecture", "mamba"); }), kUnimplemented,
              "'general.architecture' 'mamba' is not supported, only llama, qwen2, qwen3, "
              "qwen3moe, smollm3, gpt-oss and gemma3");
  ExpectError(with([](auto& f) { f.Set("llama.logit_scale", 2.0f); }), kUnimplemented,
              "'llama.logit_scale' other than 0 is not supported");
  for (const char* zero : {"llama.logit_scale", "llama.attention.scale"}) {
    EXPECT_TRUE(Open(with([zero](auto& f) { f.Set(zero, 0.0f); })).ok()) << zero;
  }
  for (const std::string experts :
       {"llama.expert_count", "llama.expert_shared_count", "llama.expert_used_count",
        "llama.expert_feed_forward_length"}) {
    EXPECT_TRUE(Open(with([&](auto& f) { f.Set(experts, uint32_t{0}); })).ok()) << experts;
    ExpectError(with([&](auto& f) { f.Set(experts, uint32_t{8}); }), kUnimplemented,
                "'" + experts + "' is not supported");
  }
  ExpectError(with([](auto& f) { f.Set("llama.ssm.conv_kernel", uint32_t{4}); }), kUnimplemented,
              "'llama.ssm.conv_kernel' is not known");
  ExpectError(with([](auto& f) { f.Set("llama.rope.dimension_count", uint32_t{16}); }),
              kUnimplemented, "'llama.rope.dimension_count' must be the size of a head, 32");
  ExpectError(with([](auto& f) { f.At("output_norm.weight").name = "blk.0.attn_qkv.weight"; }),
              kUnimplemented, "tensor 'blk.0.attn_qkv.weight' is not known");
  ExpectError(with([](auto& f) { f.At("blk.1.ffn_up.weight").name = "blk.1.ffn_up_exps.weight"; }),
              kInvalid, "tensor 'blk.1.ffn_up_exps.weight' must have three dimensions");
  ExpectError(with([](auto& f) { f.At("blk.1.ffn_up.weight").name = "blk.1.ffn_up_shexp.weight"; }),
              kUnimplemented, "tensor 'blk.1.ffn_up_shexp.weight' is not known");
  ExpectError(with([](auto& f) { f.At("blk.1.ffn_up.weight").name = "blk.01.ffn_up.weight"; }),
              kUnimplemented, "tensor 'blk.01.ffn_up.weight' is not known");
}

// bad input: GGUF | keys missing or of another type; heads that do not divide the rows |
//   INVALID_ARGUMENT, the key named, with its range
TEST_F(GgufFileTest, WhatIsMissingOrWrongIsNamed) {
  const auto with = [](const std::function<void(GgufWriter&)>& change) {
    TinyGguf tiny;
    change(tiny.file);
    return tiny.file;
  };
  for (const char* key : {"general.architecture", "llama.block_count", "llama.context_length",
                          "llama.embedding_length", "llama.feed_forward_length",
                          "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon"}) {
    ExpectError(with([&](auto& f) { f.Remove(key); }), kInvalid,
                "'" + std::string(key) + "' is missing");
  }
  ExpectError(with([](auto& f) {
                f.Set("llama.attention.head_count", std::vector<int32_t>{4, 4});
              }),
              kInvalid, "'llama.attention.head_count' must be one whole number");
  ExpectError(with([](auto& f) { f.Set("llama.block_count", 2.0f); }), kInvalid,
              "'llama.block_count' must be one whole number in [1, 16777216]");
  ExpectError(with([](auto& f) { f.Set("llama.rope.freq_base", NAN); }), kInvalid,
              "'llama.rope.freq_base' must be a finite number");
  ExpectError(with([](auto& f) { f.Set("llama.vocab_size", uint32_t{265}); }), kInvalid,
              "'llama.vocab_size' is not the number of rows");
  ExpectError(with([](auto& f) {
                std::vector<std::string> tokens;
                for (int i = 0; i < 265; ++i) tokens.push_back(std::to_string(i));
                f.Set("tokenizer.ggml.tokens", tokens);
                f.Remove("tokenizer.ggml.token_type");
                f.Set("tokenizer.ggml.scores", std::vector<float>(265, 0.0f));
              }),
              kInvalid, "'tokenizer.ggml.tokens' has more entries than token_embd.weight has rows");
  ExpectError(with([](auto& f) { f.RemoveTensor("token_embd.weight"); }), kInvalid,
              "'token_embd.weight' must be a tensor of two dimensions");
  ExpectError(with([](auto& f) { f.Set("llama.attention.head_count", uint32_t{3}); }), kInvalid,
              "tensor of 'model.layers.0.self_attn.q_proj.weight' has rows that are not whole");
}

TEST_F(GgufFileTest, WhatThisProjectAddsIsConfigsFields) {
  TinyGguf tiny({.num_layers = 1});
  EXPECT_TRUE(Open(tiny.file)->index_metric_tensors().empty());
  tiny.file.Set("eta.family", "llama");
  tiny.file.Set("eta.gate", "silu");
  tiny.file.Set("eta.beta", 4.7f);
  tiny.file.Set("eta.index", "outlier");
  tiny.file.Set("eta.sink_blocks", uint32_t{2});
  tiny.file.Set("eta.reads", "shared");
  tiny.file.Set("eta.special_keys", "temper");
  tiny.file.Set("eta.block_size", uint32_t{32});
  const auto add = [&](const std::string& name, const std::vector<uint64_t>& dimensions,
                       size_t count) {
    std::string data;
    for (size_t i = 0; i < count; ++i) data += RawBytes(static_cast<float>(i));
    tiny.file.tensors.push_back({name, dimensions, 0, data, {}});
  };
  add("eta.blk.0.tau.weight", {128, 4}, 512);
  add("eta.blk.0.tau.bias", {4}, 4);
  add("eta.blk.0.index_metric", {32, 32, 2}, 2048);
  add("eta.blk.0.index_centre", {32, 2}, 64);
  const Json config = Config(tiny.file);
  EXPECT_EQ(config["model_type"], "eta");
  EXPECT_EQ(config["architectures"], Json::parse(R"(["EtaForCausalLM"])"));
  EXPECT_EQ(config["eta_family"], "llama");
  EXPECT_EQ(config["eta_gate"], "silu");
  EXPECT_EQ(config["eta_beta"], 4.7);
  EXPECT_EQ(config["eta_index"], "outlier");
  EXPECT_EQ(config["eta_sink_blocks"], 2);
  EXPECT_EQ(config["eta_reads"], "shared");
  EXPECT_EQ(config["eta_special_keys"], "temper");
  EXPECT_EQ(config["eta_block_size"], 32);
  const auto file = Open(tiny.file).value();
  const std::vector<float> bias = Floats(file.Read("model.layers.0.self_attn.tau_proj.bias"));
  EXPECT_EQ(bias, (std::vector<float>{0.0f, 1.0f, 2.0f, 3.0f}));
  EXPECT_TRUE(file.tensors().contains("model.layers.0.self_attn.tau_proj.weight"));
  ASSERT_EQ(file.index_metric_tensors().size(), 2u);
  EXPECT_EQ(file.index_metric_tensors().at("layers.0.metric").shape,
            (std::vector<int64_t>{2, 32, 32}));
  EXPECT_EQ(Floats(file.Read("layers.0.centre")).back(), 63.0f);
  EXPECT_FALSE(file.tensors().contains("layers.0.metric"));
  tiny.file.Set("eta.family", "eta");
  EXPECT_FALSE(Config(tiny.file).contains("eta_family"));
  EXPECT_EQ(Config(tiny.file)["model_type"], "eta");
}

// bad input: GGUF | keys, predictors, index metrics under `eta.` that are not known, of another
//   type or family | refused, key or tensor named | BadGgufExportTest.KeysThatMakeNoSenseAreNamed
TEST_F(GgufFileTest, WhatThisProjectAddsIsReadStrictly) {
  const auto with = [](const std::function<void(GgufWriter&)>& change) {
    TinyGguf tiny;
    change(tiny.file);
    return tiny.file;
  };
  ExpectError(with([](auto& f) { f.Set("eta.other", "x"); }), kUnimplemented,
              "'eta.other' is not known");
  ExpectError(with([](auto& f) { f.Set("eta.family", "qwen3"); }), kInvalid,
              "'eta.family' 'qwen3' is not the family of the file, llama");
  ExpectError(with([](auto& f) { f.Set("eta.beta", 5.0f); }), kInvalid,
              "'eta.beta' is there without eta.family");
  ExpectError(with([](auto& f) { f.Set("eta.reads", 1.0f); }), kInvalid,
              "'eta.reads' must be a text in UTF-8");
  ExpectError(with([](auto& f) { f.Set("eta.block_size", "64"); }), kInvalid,
              "'eta.block_size' must be one whole number");
  for (const char* name : {"eta.blk.0.tau", "eta.blk.00.tau.bias", "eta.blk.0.attn_q.weight",
                           "eta.token_embd.weight", "blk.0.tau.bias", "layers.0.metric"}) {
    ExpectError(with([&](auto& f) { f.At("output_norm.weight").name = name; }), kUnimplemented,
                "tensor '" + std::string(name) + "' is not known");
  }
}

TEST(GgufTensorNames, GoBothWays) {
  for (const char* name : {"token_embd.weight", "output_norm.weight", "output.weight",
                           "blk.0.attn_q.weight", "blk.12.attn_k.bias", "blk.3.attn_q_norm.weight",
                           "blk.7.ffn_down.weight", "eta.blk.5.tau.weight", "eta.blk.5.tau.bias",
                           "eta.blk.29.index_metric", "eta.blk.29.index_centre"}) {
    const auto named = ToHuggingFaceName(name);
    ASSERT_TRUE(named) << name;
    EXPECT_EQ(ToGgufName(named->name), name);
  }
  for (const char* name : {"blk.2.ffn_norm.weight", "blk.2.post_attention_norm.weight",
                           "blk.2.post_ffw_norm.weight", "blk.2.attn_norm.weight"}) {
    const auto named = ToHuggingFaceName(name, /*post_norms=*/true);
    ASSERT_TRUE(named) << name;
    EXPECT_EQ(ToGgufName(named->name, /*post_norms=*/true), name);
  }
  EXPECT_EQ(ToHuggingFaceName("blk.2.ffn_norm.weight")->name,
            "model.layers.2.post_attention_layernorm.weight");
  EXPECT_EQ(ToHuggingFaceName("blk.2.ffn_norm.weight", true)->name,
            "model.layers.2.pre_feedforward_layernorm.weight");
  EXPECT_EQ(ToHuggingFaceName("blk.2.post_ffw_norm.weight"), std::nullopt);
  for (const char* name : {"", "model.layers.0", "model.layers.0.self_attn.qkv.weight",
                           "model.layers.00.mlp.up_proj.weight", "layers.0.other",
                           "model.layers.0.input_layernorm.bias", "lm_head.bias"}) {
    EXPECT_EQ(ToGgufName(name), std::nullopt) << name;
  }
}

// bad input: GGUF | scaling of RoPE that is not known | UNIMPLEMENTED, the key named
TEST_F(GgufFileTest, ScalingOfRopeIsLinearOrYarn) {
  TinyGguf tiny;
  tiny.file.Set("llama.rope.scaling.factor", 4.0f);
  EXPECT_EQ(Config(tiny.file)["rope_scaling"],
            Json::parse(R"({"factor": 4.0, "rope_type": "linear"})"));
  tiny.file.Set("llama.rope.scaling.type", "yarn");
  tiny.file.Set("llama.rope.scaling.original_context_length", uint32_t{256});
  EXPECT_EQ(Config(tiny.file)["rope_scaling"],
            Json::parse(R"({"factor": 4.0, "original_max_position_embeddings": 256,
                            "rope_type": "yarn"})"));
  tiny.file.Set("llama.rope.scaling.attn_factor", 0.5f);
  ExpectError(tiny.file, kUnimplemented, "'llama.rope.scaling.attn_factor' must be 1");
  tiny.file.Remove("llama.rope.scaling.attn_factor");
  tiny.file.Set("llama.rope.scaling.type", "longrope");
  ExpectError(tiny.file, kUnimplemented, "'llama.rope.scaling.type' 'longrope' is not supported");
  tiny.file.Set("llama.rope.scaling.type", "none");
  EXPECT_FALSE(Config(tiny.file).contains("rope_scaling"));
}

// As the conversion to GGUF computes them from config.json.
std::vector<float> Factors(const Llama3Scaling& scaling, double theta, int head_dim) {
  std::vector<float> factors;
  const auto context = static_cast<double>(scaling.original_context);
  for (int i = 0; i < head_dim; i += 2) {
    const double wavelength = 2 * M_PI * std::pow(theta, static_cast<double>(i) / head_dim);
    double factor = 1.0;
    if (wavelength > context / scaling.low_freq_factor) {
      factor = scaling.factor;
    } else if (wavelength >= context / scaling.high_freq_factor) {
      const double smooth = (context / wavelength - scaling.low_freq_factor) /
                            (scaling.high_freq_factor - scaling.low_freq_factor);
      factor = 1.0 / ((1.0 - smooth) / scaling.factor + smooth);
    }
    factors.push_back(static_cast<float>(factor));
  }
  return factors;
}

TEST(Llama3ScalingOfFactors, IsFoundAgain) {
  const std::pair<Llama3Scaling, int> cases[] = {{{8.0, 1.0, 4.0, 8192}, 128},    // LLaMA 3.1
                                                 {{32.0, 1.0, 4.0, 8192}, 64},    // LLaMA 3.2
                                                 {{16.0, 1.0, 8.0, 32768}, 128},  // another
                                                 {{4.0, 1.0, 2.5, 4096}, 256}};
  for (const auto& [scaling, head_dim] : cases) {
    const auto found = FindLlama3Scaling(Factors(scaling, 500000.0, head_dim), 500000.0, head_dim);
    ASSERT_TRUE(found) << scaling.factor;
    EXPECT_EQ(found->factor, scaling.factor);
    EXPECT_EQ(found->low_freq_factor, 1.0);
    EXPECT_EQ(found->high_freq_factor, scaling.high_freq_factor);
    EXPECT_EQ(found->original_context, scaling.original_context);
  }
  std::vector<float> other = Factors({8.0, 1.0, 4.0, 8192}, 500000.0, 128);
  other[3] = 1.5f;
  EXPECT_FALSE(FindLlama3Scaling(other, 500000.0, 128));
  EXPECT_FALSE(FindLlama3Scaling({}, 500000.0, 128));
  EXPECT_FALSE(FindLlama3Scaling({NAN, NAN}, 500000.0, 4));
}

TEST_F(GgufFileTest, FactorsOfFrequenciesBecomeLlama3sScaling) {
  TinyGguf tiny;
  tiny.file.Set("llama.rope.freq_base", 500000.0f);
  const auto set = [&](const std::vector<float>& factors) {
    tiny.file.RemoveTensor("rope_freqs.weight");
    tiny.file.tensors.push_back(
        {"rope_freqs.weight",
         {factors.size()},
         0,
         std::string(reinterpret_cast<const char*>(factors.data()), factors.size() * 4),
         {}});
  };
  set(Factors({8.0, 1.0, 4.0, 8192}, 500000.0, 32));
  EXPECT_EQ(Config(tiny.file)["rope_scaling"], Json::parse(R"({
    "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"})"));
  set(std::vector<float>(16, 1.0f));
  EXPECT_FALSE(Config(tiny.file).contains("rope_scaling"));
  set(std::vector<float>(16, 2.0f));
  ExpectError(tiny.file, kUnimplemented, "'rope_freqs.weight' holds other factors");
  set(std::vector<float>(15, 1.0f));
  ExpectError(tiny.file, kInvalid, "'rope_freqs.weight' must have one number for each pair");
  set(std::vector<float>(1025, 1.0f));
  ExpectError(tiny.file, kInvalid, "at most 1024 numbers");
}

}  // namespace
}  // namespace eta
