// Stacks of experts in a GGUF file: each expert is a tensor of its own.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/checkpoint/gguf/gguf_file.h"
#include "engine/checkpoint/gguf/gguf_tensor_names.h"
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
using Json = nlohmann::json;

class GgufExpertsTest : public ::testing::Test {
 protected:
  absl::StatusOr<GgufFile> Open(const GgufWriter& file) const {
    return GgufFile::Open(folder_.Write("tiny.gguf", file.Serialize()));
  }
  Json Config(const GgufWriter& file) const {
    return Json::parse(Open(file).value().texts().config_json);
  }
  void ExpectError(const GgufWriter& file, absl::StatusCode code,
                   const std::string& sentence) const {
    EXPECT_THAT(Open(file).status(), FailsSaying(code, sentence));
  }

  TempFolder folder_;
};

TEST(GgufExpertNames, AnExpertIsInTheStackOfItsLayer) {
  const auto named = ToHuggingFaceName("blk.3.ffn_gate_exps.weight");
  ASSERT_TRUE(named && named->experts);
  const std::string expert = ExpertName(named->name, 17);
  EXPECT_EQ(expert, "model.layers.3.mlp.experts.17.gate_proj.weight");
  EXPECT_EQ(ExpertOf(expert), 17);
  EXPECT_EQ(ToGgufName(expert), "blk.3.ffn_gate_exps.weight");
  EXPECT_EQ(ToGgufName("model.layers.3.mlp.gate.weight"), "blk.3.ffn_gate_inp.weight");
  for (const char* name :
       {"model.layers.3.mlp.experts.017.gate_proj.weight", "model.layers.3.mlp.experts.x.up_proj",
        "model.layers.3.mlp.gate.weight", "other.mlp.experts.1.up_proj.weight"}) {
    EXPECT_EQ(ExpertOf(name), std::nullopt) << name;
  }
  const std::string bias = "model.layers.3.mlp.experts.17.gate_proj.bias";
  EXPECT_EQ(ToGgufName(bias), "blk.3.ffn_gate_exps.bias");
}

TEST_F(GgufExpertsTest, StacksOfBlocksAreTheExpertsOwn) {
  for (const GgmlType type : testing::kBlockTypes) {
    TinyGguf tiny({.architecture = "qwen3moe",
                   .num_layers = 1,
                   .model_dim = 256,
                   .num_experts = 3,
                   .expert_ffn_dim = 256});
    const std::string stack = "blk.0.ffn_down_exps.weight";
    testing::UseBlocks(tiny.file, stack, type);
    const std::string& all = tiny.file.At(stack).data;
    const auto file = Open(tiny.file).value();
    std::string read;
    for (int expert = 0; expert < 3; ++expert) {
      const std::string name =
          "model.layers.0.mlp.experts." + std::to_string(expert) + ".down_proj.weight";
      EXPECT_THAT(file.tensors().at(name).shape, ::testing::ElementsAre(256, 256));
      const auto stored = file.ReadStored(name).value();
      ASSERT_TRUE(stored.blocks);
      EXPECT_EQ(stored.blocks->type, type);
      read.append(reinterpret_cast<const char*>(stored.bytes.data()), stored.bytes.size());
      std::vector<std::byte> unpacked(256 * 256 * sizeof(float));
      UnpackBlocks(*stored.blocks, stored.bytes, unpacked);
      EXPECT_EQ(file.Read(name).value(), unpacked);
    }
    EXPECT_EQ(read, all);
  }
}

// bad input: GGUF | experts: keys missing, shared ones, another function than softmax, weights that
//   are not normed, a stack of two dimensions, of over 1024 | UNIMPLEMENTED or INVALID_ARGUMENT,
//   key or tensor named
TEST_F(GgufExpertsTest, ExpertsAreThoseOfQwen3Moe) {
  const Json config = Config(TinyGguf({.architecture = "qwen3moe"}).file);
  EXPECT_EQ(config["model_type"], "qwen3_moe");
  EXPECT_EQ(config["architectures"], Json{"Qwen3MoeForCausalLM"});
  EXPECT_EQ(config["num_experts"], 6);
  EXPECT_EQ(config["num_experts_per_tok"], 2);
  EXPECT_EQ(config["moe_intermediate_size"], 32);
  EXPECT_EQ(config["norm_topk_prob"], true);
  EXPECT_EQ(config["intermediate_size"], 96);
  const auto with = [](const std::function<void(GgufWriter&)>& change) {
    TinyGguf tiny({.architecture = "qwen3moe"});
    change(tiny.file);
    return tiny.file;
  };
  EXPECT_TRUE(Open(with([](auto& f) {
                f.Set("qwen3moe.expert_gating_func", uint32_t{1});
                f.Set("qwen3moe.expert_weights_norm", true);
                f.Set("qwen3moe.expert_shared_count", uint32_t{0});
              })).ok());
  for (const char* key : {"qwen3moe.expert_count", "qwen3moe.expert_used_count",
                          "qwen3moe.expert_feed_forward_length"}) {
    ExpectError(with([&](auto& f) { f.Remove(key); }), absl::StatusCode::kInvalidArgument,
                "'" + std::string(key) + "' is missing");
    ExpectError(with([&](auto& f) { f.Set(key, uint32_t{0}); }), absl::StatusCode::kInvalidArgument,
                "'" + std::string(key) + "' must be one whole number in [1, 16777216]");
  }
  ExpectError(with([](auto& f) { f.Set("qwen3moe.expert_shared_count", uint32_t{1}); }),
              absl::StatusCode::kUnimplemented, "'qwen3moe.expert_shared_count' is not supported");
  ExpectError(with([](auto& f) { f.Set("qwen3moe.expert_gating_func", uint32_t{2}); }),
              absl::StatusCode::kUnimplemented,
              "'qwen3moe.expert_gating_func' other than 1, softmax");
  ExpectError(with([](auto& f) { f.Set("qwen3moe.expert_weights_norm", false); }),
              absl::StatusCode::kUnimplemented,
              "'qwen3moe.expert_weights_norm' false is not supported");
  ExpectError(with([](auto& f) {
                f.At("blk.1.ffn_up_exps.weight").dimensions = {64, 32 * 6};
              }),
              absl::StatusCode::kInvalidArgument,
              "tensor 'blk.1.ffn_up_exps.weight' must have three dimensions");
  ExpectError(with([](auto& f) {
                f.At("blk.1.ffn_up_exps.weight").dimensions = {2, 3, 64 * 32};
              }),
              absl::StatusCode::kInvalidArgument,
              "tensor 'blk.1.ffn_up_exps.weight' has over 1024 experts");
}

// bad input: GGUF | gpt-oss: no window, another choice of experts, biases of another shape, a norm
//   by two names | INVALID_ARGUMENT or UNIMPLEMENTED, key or tensor named
TEST_F(GgufExpertsTest, GptOssHasBiasesAndSinks) {
  const auto with = [](const std::function<void(GgufWriter&)>& change) {
    TinyGguf tiny({.architecture = "gpt-oss", .num_layers = 3});
    change(tiny.file);
    return tiny.file;
  };
  const GgufWriter sound = with([](auto&) {});
  const Json config = Config(sound);
  EXPECT_EQ(config["model_type"], "gpt_oss");
  EXPECT_EQ(config["architectures"], Json{"GptOssForCausalLM"});
  EXPECT_EQ(config["attention_bias"], true);
  EXPECT_EQ(config["intermediate_size"], 32);
  EXPECT_EQ(config["num_experts"], 6);
  EXPECT_EQ(config["sliding_window"], 20);
  EXPECT_EQ(config["layer_types"],
            (Json{"sliding_attention", "full_attention", "sliding_attention"}));
  EXPECT_EQ(config["rope_scaling"]["truncate"], false);
  EXPECT_EQ(config["rope_scaling"]["rope_type"], "yarn");
  const auto file = Open(sound).value();
  EXPECT_THAT(file.tensors().at("model.layers.2.self_attn.sinks").shape, ::testing::ElementsAre(4));
  EXPECT_THAT(file.tensors().at("model.layers.2.mlp.experts.5.up_proj.bias").shape,
              ::testing::ElementsAre(32));
  const Json unscaled = Config(with([](auto& f) { f.Set("gpt-oss.rope.scaling.type", "none"); }));
  EXPECT_EQ(unscaled["rope_scaling"], Json({{"rope_type", "default"}}));
  EXPECT_TRUE(Open(with([](auto& f) { f.Set("gpt-oss.expert_gating_func", uint32_t{3}); })).ok());

  ExpectError(with([](auto& f) { f.Set("gpt-oss.expert_gating_func", uint32_t{1}); }),
              absl::StatusCode::kUnimplemented,
              "'gpt-oss.expert_gating_func' other than 3, softmax");
  ExpectError(with([](auto& f) { f.Remove("gpt-oss.attention.sliding_window"); }),
              absl::StatusCode::kInvalidArgument, "'gpt-oss.attention.sliding_window' is missing");
  ExpectError(with([](auto& f) { f.At("blk.1.ffn_up_exps.bias").dimensions = {32 * 6}; }),
              absl::StatusCode::kInvalidArgument,
              "tensor 'blk.1.ffn_up_exps.bias' must have two dimensions");
  ExpectError(with([](auto& f) {
                auto twice = f.At("blk.1.post_attention_norm.weight");
                twice.name = "blk.1.ffn_norm.weight";
                f.tensors.push_back(twice);
              }),
              absl::StatusCode::kInvalidArgument, "is there twice, by another name too");
}

}  // namespace
}  // namespace eta
