// What config.json means in each family, beside LLaMA's form (model_config_test.cc).

#include "engine/model/model_family.h"

#include <string>
#include <utility>

#include "engine/model/model_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/status_reason.h"

namespace eta {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;

Json Base(const std::string& model_type) {
  return {{"model_type", model_type}, {"vocab_size", 64},       {"hidden_size", 256},
          {"intermediate_size", 64},  {"num_hidden_layers", 4}, {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"rms_norm_eps", 1e-6},   {"max_position_embeddings", 32768}};
}

absl::StatusOr<ModelConfig> ParseFamily(const std::string& model_type,
                                        const Json& others = Json::object()) {
  Json json = Base(model_type);
  json.update(others);
  return ParseModelConfig(json.dump());
}

void ExpectFamilyRefused(const absl::StatusOr<ModelConfig>& config, absl::StatusCode code,
                         const std::string& words) {
  EXPECT_THAT(config.status(), FailsSaying(code, words)) << words;
}

// bad input: config.json | a family that is not known | UNIMPLEMENTED, with the list of those known
//   | BadModelTest.AConfigIsRefusedInOneLine
TEST(ModelFamily, TheTableIsWhatIsNamedInErrors) {
  EXPECT_EQ(KnownModelTypes(), "eta, llama, mistral, qwen2, qwen3 and smollm3");
  for (const ModelFamily& family : ModelFamilies()) {
    EXPECT_EQ(FindModelFamily(family.model_type), &family);
  }
  for (const char* type : {"mixtral", "qwen2_moe", "qwen3_moe", "gemma3", "phi3", "LLAMA", ""}) {
    EXPECT_EQ(FindModelFamily(type), nullptr);
    ExpectFamilyRefused(
        ParseFamily(type), absl::StatusCode::kUnimplemented,
        std::string("model_type '") + type +
            "' is not supported, only eta, llama, mistral, qwen2, qwen3 and smollm3");
  }
}

TEST(ModelFamily, OnlyEtaPredictsThresholds) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "smollm3"}) {
    const auto config = ParseFamily(type, {{"eta_beta", 3.0}, {"eta_gate", "silu"}}).value();
    EXPECT_FALSE(config.has_predictor) << type;
    EXPECT_EQ(config.gate, Gate::kNone) << type;
  }
}

// What eta-train adapt writes: a gate and a predictor, and what the family has besides.
// bad input: config.json | `eta_family` that is not known, or that predicts thresholds itself |
//   UNIMPLEMENTED, named
TEST(ModelFamily, AnAdaptedModelNamesTheFamilyThatItComesFrom) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "smollm3"}) {
    const Json original = {{"sliding_window", nullptr}, {"head_dim", 64}};
    const auto before = ParseFamily(type, original);
    Json fields = original;
    fields.update({{"eta_beta", 5.0}, {"eta_family", type}});
    const auto config = ParseFamily("eta", fields).value();
    EXPECT_TRUE(config.has_predictor) << type;
    EXPECT_EQ(config.gate, Gate::kSilu) << type;
    EXPECT_EQ(config.qkv_bias, before->qkv_bias) << type;
    EXPECT_EQ(config.head_norms, before->head_norms) << type;
    EXPECT_EQ(config.layers, before->layers) << type;
    EXPECT_EQ(config.rope_theta, before->rope_theta) << type;
    EXPECT_EQ(config.tie_word_embeddings, before->tie_word_embeddings) << type;
  }
  for (const char* type : {"eta", "gpt2", ""}) {
    ExpectFamilyRefused(ParseFamily("eta", {{"eta_beta", 5.0}, {"eta_family", type}}),
                        absl::StatusCode::kUnimplemented,
                        "eta_family '" + std::string(type) + "' is not a family that can be");
  }
  // It means nothing in a model that predicts no thresholds.
  EXPECT_TRUE(ParseFamily("qwen2", {{"eta_family", "gpt2"}}).ok());
}

// SmolLM2-135M-Instruct's, the fields that are read.
TEST(ModelFamily, SmolLM2IsALlama) {
  const auto config = ParseModelConfig(R"({"architectures":["LlamaForCausalLM"],
      "attention_bias":false,"attention_dropout":0.0,"bos_token_id":1,"eos_token_id":2,
      "hidden_act":"silu","hidden_size":576,"initializer_range":0.041666666666666664,
      "intermediate_size":1536,"is_llama_config":true,"max_position_embeddings":8192,
      "mlp_bias":false,"model_type":"llama","num_attention_heads":9,"num_hidden_layers":30,
      "num_key_value_heads":3,"pad_token_id":2,"pretraining_tp":1,"rms_norm_eps":1e-05,
      "rope_interleaved":false,"rope_scaling":null,"rope_theta":100000,"tie_word_embeddings":true,
      "torch_dtype":"bfloat16","use_cache":true,"vocab_size":49152})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->group_size(), 3);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->rope_theta, 1e5f);
  EXPECT_EQ(config->max_context, 8192);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_FALSE(config->qkv_bias || config->out_bias || config->head_norms);
}

// SmolLM3-3B's, the fields that are read.
TEST(ModelFamily, SmolLM3HasLayersWithoutRope) {
  Json json = Json::parse(R"({"architectures":["SmolLM3ForCausalLM"],"attention_bias":false,
      "attention_dropout":0.0,"eos_token_id":128012,"hidden_act":"silu","hidden_size":2048,
      "initializer_range":0.02,"intermediate_size":11008,"max_position_embeddings":65536,
      "max_window_layers":28,"mlp_bias":false,"model_type":"smollm3","no_rope_layer_interval":4,
      "num_attention_heads":16,"num_hidden_layers":36,"num_key_value_heads":4,
      "pad_token_id":128004,"pretraining_tp":2,"rms_norm_eps":1e-06,"rope_scaling":null,
      "rope_theta":5000000.0,"sliding_window":null,"use_sliding_window":false,
      "vocab_size":128256})");
  json["layer_types"] = Json(36, "full_attention");
  json["no_rope_layers"] = Json::array();
  for (int i = 0; i < 36; ++i) json["no_rope_layers"].push_back(i % 4 == 3 ? 0 : 1);
  const auto config = ParseModelConfig(json.dump());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 128);
  EXPECT_EQ(config->group_size(), 4);
  EXPECT_EQ(config->rope_theta, 5e6f);
  EXPECT_EQ(config->max_context, 65536);
  EXPECT_EQ(config->sliding_window, 0);
  EXPECT_TRUE(config->tie_word_embeddings);
  for (int32_t i = 0; i < 36; ++i) EXPECT_EQ(config->layer(i).rotates, i % 4 != 3) << i;
  for (const char* unsaid : {"layer_types", "no_rope_layers", "no_rope_layer_interval"}) {
    json.erase(unsaid);
    EXPECT_EQ(ParseModelConfig(json.dump()).value(), *config) << "without " << unsaid;
  }
}

TEST(ModelFamily, BaseAndHeadThatTheFileDoesNotNameAreThoseOfTransformers) {
  for (const ModelFamily& family : ModelFamilies()) {
    if (family.has_predictor) continue;
    const std::string type(family.model_type);
    const bool smollm3 = type == "smollm3";
    const auto unsaid = ParseFamily(type).value();
    EXPECT_EQ(unsaid.rope_theta, smollm3 ? 2e6f : 1e4f) << type;
    EXPECT_EQ(unsaid.tie_word_embeddings, smollm3) << type;
    const auto newer = ParseFamily(type, {{"rope_parameters", {{"rope_type", "default"}}}});
    EXPECT_EQ(newer->rope_theta, unsaid.rope_theta) << type;
    const auto said =
        ParseFamily(type, {{"rope_theta", 5e5}, {"tie_word_embeddings", !smollm3}}).value();
    EXPECT_EQ(said.rope_theta, 5e5f) << type;
    EXPECT_EQ(said.tie_word_embeddings, !smollm3) << type;
  }
}

// bad input: config.json | biases that the family does not have | UNIMPLEMENTED, the field named
TEST(ModelFamily, BiasesFollowTheFamilyOrTheFile) {
  const auto biases = [](const char* type, const Json& others = Json::object()) {
    const auto config = ParseFamily(type, others);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? std::pair(config->qkv_bias, config->out_bias) : std::pair(false, true);
  };
  const Json yes = {{"attention_bias", true}};
  const Json no = {{"attention_bias", false}};
  for (const char* type : {"llama", "qwen3", "smollm3"}) {
    EXPECT_EQ(biases(type), std::pair(false, false)) << type;
    EXPECT_EQ(biases(type, no), std::pair(false, false)) << type;
    EXPECT_EQ(biases(type, yes), std::pair(true, true)) << type;
  }
  for (const Json& said : {Json::object(), yes, no}) {
    EXPECT_EQ(biases("qwen2", said), std::pair(true, false)) << "transformers does not read it";
  }
  EXPECT_EQ(biases("mistral", no), std::pair(false, false));
  ExpectFamilyRefused(ParseFamily("mistral", yes), absl::StatusCode::kUnimplemented,
                      "attention_bias true is not supported");
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "smollm3"}) {
    ExpectFamilyRefused(ParseFamily(type, {{"mlp_bias", true}}), absl::StatusCode::kUnimplemented,
                        "mlp_bias true is not supported");
  }
}

TEST(ModelFamily, TensorsFollowBiasesAndNorms) {
  const auto qwen2 = ExpectedTensors(*ParseFamily("qwen2"));
  EXPECT_THAT(qwen2.at("model.layers.3.self_attn.q_proj.bias"), ElementsAre(256));
  EXPECT_THAT(qwen2.at("model.layers.3.self_attn.k_proj.bias"), ElementsAre(128));
  EXPECT_THAT(qwen2.at("model.layers.3.self_attn.v_proj.bias"), ElementsAre(128));
  EXPECT_FALSE(qwen2.contains("model.layers.3.self_attn.o_proj.bias"));
  const auto qwen3 = ExpectedTensors(*ParseFamily("qwen3", {{"attention_bias", true}}));
  EXPECT_THAT(qwen3.at("model.layers.0.self_attn.q_norm.weight"), ElementsAre(128));
  EXPECT_THAT(qwen3.at("model.layers.0.self_attn.k_norm.weight"), ElementsAre(128));
  EXPECT_THAT(qwen3.at("model.layers.0.self_attn.o_proj.bias"), ElementsAre(256));
  EXPECT_EQ(ExpectedTensors(*ParseFamily("mistral")), ExpectedTensors(*ParseFamily("llama")));
}

TEST(ModelFamily, HeadsThatTheFileDoesNotNameAreThoseOfTransformers) {
  const auto heads = [](const char* type, const Json& head_dim, const Json& kv_heads) {
    Json json = Base(type);
    json["hidden_size"] = 2048;
    json["num_attention_heads"] = 32;
    json["head_dim"] = head_dim;
    json["num_key_value_heads"] = kv_heads;
    for (const char* field : {"head_dim", "num_key_value_heads"}) {
      if (json[field] == "absent") json.erase(field);
    }
    const auto config = ParseModelConfig(json.dump());
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? std::pair(config->head_dim, config->num_kv_heads) : std::pair(0, 0);
  };
  EXPECT_EQ(heads("llama", "absent", "absent"), std::pair(64, 32));
  EXPECT_EQ(heads("mistral", "absent", "absent"), std::pair(64, 8));
  EXPECT_EQ(heads("qwen2", "absent", "absent"), std::pair(64, 32));
  EXPECT_EQ(heads("qwen3", "absent", "absent"), std::pair(128, 32));
  EXPECT_EQ(heads("smollm3", "absent", "absent"), std::pair(64, 4));
  for (const char* type : {"llama", "mistral", "qwen2", "smollm3"}) {
    EXPECT_EQ(heads(type, nullptr, nullptr), std::pair(64, 32)) << type;
    EXPECT_EQ(heads(type, 96, 2), std::pair(96, 2)) << type;
  }
}

}  // namespace
}  // namespace eta
