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
  EXPECT_EQ(KnownModelTypes(),
            "eta, llama, mistral, qwen2, qwen3, qwen3_moe, gpt_oss, smollm3 and gemma3_text");
  for (const ModelFamily& family : ModelFamilies()) {
    EXPECT_EQ(FindModelFamily(family.model_type), &family);
  }
  for (const char* type : {"mixtral", "qwen2_moe", "gemma3", "phi3", "LLAMA", ""}) {
    EXPECT_EQ(FindModelFamily(type), nullptr);
    ExpectFamilyRefused(
        ParseFamily(type), absl::StatusCode::kUnimplemented,
        std::string("model_type '") + type + "' is not supported, only " + KnownModelTypes());
  }
}

// gpt-oss-20b's, as it was published but for its sizes.
Json GptOssFields() {
  return {{"attention_bias", true},
          {"experts_per_token", 4},
          {"head_dim", 64},
          {"hidden_act", "silu"},
          {"initial_context_length", 4096},
          {"max_position_embeddings", 131072},
          {"num_experts_per_tok", 4},
          {"num_local_experts", 32},
          {"quantization_config", {{"quant_method", "mxfp4"}}},
          {"rope_scaling",
           {{"beta_fast", 32.0},
            {"beta_slow", 1.0},
            {"factor", 32.0},
            {"original_max_position_embeddings", 4096},
            {"rope_type", "yarn"},
            {"truncate", false}}},
          {"rope_theta", 150000},
          {"sliding_window", 128},
          {"swiglu_limit", 7.0}};
}

TEST(ModelFamily, GptOssHasSinksWindowsAndExpertsWithBiases) {
  const auto config = ParseFamily("gpt_oss", GptOssFields()).value();
  EXPECT_TRUE(config.sinks);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_TRUE(config.out_bias);
  EXPECT_TRUE(config.expert_biases);
  EXPECT_TRUE(config.normalise_experts);
  EXPECT_EQ(config.activation, Activation::kClamped);
  EXPECT_EQ(config.num_experts, 32);
  EXPECT_EQ(config.experts_per_token, 4);
  EXPECT_EQ(config.expert_ffn_dim, 64);  // intermediate_size
  EXPECT_EQ(config.max_context, 131072);
  EXPECT_EQ(config.rope_scaling.type, RopeScalingType::kYarn);
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(config.layer(i).window, i % 2 == 0 ? 128 : 0) << i;
    EXPECT_TRUE(config.HasExperts(i));
  }
  Json listed = GptOssFields();
  listed["layer_types"] = {"full_attention", "sliding_attention", "full_attention",
                           "full_attention"};
  EXPECT_THAT(ParseFamily("gpt_oss", listed)->full_layers(), ElementsAre(0, 2, 3));
  const auto tensors = ExpectedTensors(config);
  EXPECT_EQ(tensors.at("model.layers.1.self_attn.sinks"), std::vector<int64_t>{4});
  EXPECT_EQ(tensors.at("model.layers.1.mlp.gate.bias"), std::vector<int64_t>{32});
  EXPECT_EQ(tensors.at("model.layers.3.mlp.experts.31.up_proj.bias"), std::vector<int64_t>{64});
  EXPECT_EQ(tensors.at("model.layers.3.mlp.experts.31.down_proj.bias"), std::vector<int64_t>{256});
}

// bad input: config.json | gpt_oss without rope scaling, window null, an activation with other
//   constants | INVALID_ARGUMENT or UNIMPLEMENTED, named
TEST(ModelFamily, GptOssIsRefusedWithWhatIsNotItsForm) {
  const auto refused = [](const char* field, const Json& value, absl::StatusCode code,
                          const std::string& words) {
    Json fields = GptOssFields();
    fields[field] = value;
    ExpectFamilyRefused(ParseFamily("gpt_oss", fields), code, words);
  };
  using enum absl::StatusCode;
  refused("rope_scaling", nullptr, kInvalidArgument, "rope_scaling must be there");
  refused("sliding_window", nullptr, kUnimplemented, "sliding_window null is not supported");
  refused("swiglu_limit", 6.0, kUnimplemented, "swiglu_limit other than 7 is not supported");
  refused("swiglu_alpha", 1.0, kUnimplemented, "swiglu_alpha other than 1.702 is not supported");
  refused("num_local_experts", 1000000, kInvalidArgument, "num_local_experts");
  refused("num_experts_per_tok", 33, kInvalidArgument,
          "num_experts_per_tok must be at most num_experts, 32");
  refused("sliding_window", 0, kInvalidArgument, "sliding_window");
}

TEST(ModelFamily, OnlyEtaPredictsThresholds) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "smollm3"}) {
    const auto config = ParseFamily(type, {{"eta_beta", 3.0}, {"eta_gate", "silu"}}).value();
    EXPECT_FALSE(config.has_predictor) << type;
    EXPECT_EQ(config.gate, Gate::kNone) << type;
  }
}

// What eta-train adapt writes: a gate and a predictor, and what the family has besides.
// bad input: config.json | `eta_family` that is not known, that predicts thresholds itself, that
//   has experts or is Gemma | UNIMPLEMENTED, named
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
  for (const char* type : {"eta", "qwen3_moe", "gpt_oss", "gemma3_text", "gpt2", ""}) {
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
    if (family.names_scaling) continue;  // a file that says nothing is refused
    const bool tied = type == "smollm3" || type == "gemma3_text";
    const auto unsaid = ParseFamily(type).value();
    EXPECT_EQ(unsaid.rope_theta, type == "smollm3" ? 2e6f : (tied ? 1e6f : 1e4f)) << type;
    EXPECT_EQ(unsaid.tie_word_embeddings, tied) << type;
    const auto newer = ParseFamily(type, {{"rope_parameters", {{"rope_type", "default"}}}});
    EXPECT_EQ(newer->rope_theta, unsaid.rope_theta) << type;
    const auto said =
        ParseFamily(type, {{"rope_theta", 5e5}, {"tie_word_embeddings", !tied}}).value();
    EXPECT_EQ(said.rope_theta, 5e5f) << type;
    EXPECT_EQ(said.tie_word_embeddings, !tied) << type;
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
  for (const char* type : {"llama", "qwen3", "qwen3_moe", "smollm3"}) {
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
  EXPECT_EQ(heads("qwen3_moe", "absent", "absent"), std::pair(64, 4));
  EXPECT_EQ(heads("smollm3", "absent", "absent"), std::pair(64, 4));
  for (const char* type : {"llama", "mistral", "qwen2", "smollm3"}) {
    EXPECT_EQ(heads(type, nullptr, nullptr), std::pair(64, 32)) << type;
    EXPECT_EQ(heads(type, 96, 2), std::pair(96, 2)) << type;
  }
}

// Qwen3-30B-A3B's, the fields that are read.
TEST(ModelFamily, ExpertsAreThoseOfTheFile) {
  const auto config = ParseModelConfig(R"({"architectures":["Qwen3MoeForCausalLM"],
      "attention_bias":false,"bos_token_id":151643,"decoder_sparse_step":1,"eos_token_id":151645,
      "head_dim":128,"hidden_act":"silu","hidden_size":2048,"intermediate_size":6144,
      "max_position_embeddings":40960,"max_window_layers":48,"mlp_only_layers":[],
      "model_type":"qwen3_moe","moe_intermediate_size":768,"norm_topk_prob":true,
      "num_attention_heads":32,"num_experts":128,"num_experts_per_tok":8,"num_hidden_layers":48,
      "num_key_value_heads":4,"output_router_logits":false,"rms_norm_eps":1e-06,
      "rope_scaling":null,"rope_theta":1000000.0,"router_aux_loss_coef":0.001,
      "sliding_window":null,"tie_word_embeddings":false,"use_sliding_window":false,
      "vocab_size":151936})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_experts, 128);
  EXPECT_EQ(config->experts_per_token, 8);
  EXPECT_EQ(config->expert_ffn_dim, 768);
  EXPECT_TRUE(config->normalise_experts);
  EXPECT_EQ(config->expert_layers, std::vector<bool>(48, true));
  EXPECT_TRUE(config->head_norms);
  EXPECT_EQ(config->sliding_window, 0);
  EXPECT_EQ(ExpectedTensors(*config).size(), 3u + 48u * (9u + 3u * 128u));
}

TEST(ModelFamily, ExpertsThatTheFileDoesNotNameAreThoseOfTransformers) {
  const auto config = ParseFamily("qwen3_moe").value();
  EXPECT_EQ(config.num_experts, 128);
  EXPECT_EQ(config.experts_per_token, 8);
  EXPECT_EQ(config.expert_ffn_dim, 768);
  EXPECT_FALSE(config.normalise_experts);
  EXPECT_EQ(config.expert_layers, std::vector<bool>(4, true));
  EXPECT_EQ(ParseFamily("qwen3_moe", {{"num_local_experts", 16}})->num_experts, 16);
  EXPECT_EQ(ParseFamily("qwen3_moe", {{"num_experts", 16}, {"num_local_experts", 16}})->num_experts,
            16);
  const auto layers = [](const Json& step, const Json& dense) {
    return ParseFamily("qwen3_moe", {{"decoder_sparse_step", step}, {"mlp_only_layers", dense}})
        ->expert_layers;
  };
  EXPECT_EQ(layers(2, nullptr), (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(layers(2, Json{1}), (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(layers(1, Json{0, 3}), (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(layers(4, Json::array()), (std::vector<bool>{false, false, false, true}));
  // Where no layer has experts, the model is one without.
  const auto dense = ParseFamily("qwen3_moe", {{"decoder_sparse_step", 5}}).value();
  EXPECT_EQ(dense.num_experts, 0);
  EXPECT_TRUE(dense.expert_layers.empty());
  EXPECT_EQ(ExpectedTensors(dense),
            ExpectedTensors(*ParseFamily("qwen3", {{"head_dim", dense.head_dim}})));
}

TEST(ModelFamily, TensorsFollowExperts) {
  const auto tensors = ExpectedTensors(*ParseFamily(
      "qwen3_moe", {{"num_experts", 5}, {"num_experts_per_tok", 2}, {"decoder_sparse_step", 2}}));
  EXPECT_THAT(tensors.at("model.layers.1.mlp.gate.weight"), ElementsAre(5, 256));
  EXPECT_THAT(tensors.at("model.layers.1.mlp.experts.4.gate_proj.weight"), ElementsAre(768, 256));
  EXPECT_THAT(tensors.at("model.layers.1.mlp.experts.0.up_proj.weight"), ElementsAre(768, 256));
  EXPECT_THAT(tensors.at("model.layers.3.mlp.experts.2.down_proj.weight"), ElementsAre(256, 768));
  EXPECT_THAT(tensors.at("model.layers.0.mlp.down_proj.weight"), ElementsAre(256, 64));
  for (const char* absent :
       {"model.layers.0.mlp.gate.weight", "model.layers.1.mlp.gate_proj.weight",
        "model.layers.1.mlp.experts.5.up_proj.weight"}) {
    EXPECT_FALSE(tensors.contains(absent)) << absent;
  }
}

// bad input: config.json | experts: none, over 1024, over 32768 in all layers, more for a token
//   than there are or than 64, a width out of bounds, layers that are not there, a step of 0 |
//   INVALID_ARGUMENT naming field and limit
TEST(ModelFamily, EveryNumberOfExpertsIsChecked) {
  const auto refused = [](const Json& fields, const std::string& words) {
    ExpectFamilyRefused(ParseFamily("qwen3_moe", fields), absl::StatusCode::kInvalidArgument,
                        words);
  };
  for (const Json& bad : {Json(0), Json(-1), Json(1025), Json(1000000), Json("128"), Json(8.5)}) {
    refused({{"num_experts", bad}}, "num_experts must be a whole number from 1 to 1024");
    refused({{"num_local_experts", bad}},
            "num_local_experts must be a whole number from 1 to 1024");
  }
  refused({{"num_experts", 8}, {"num_local_experts", 9}},
          "num_local_experts differs from num_experts");
  refused({{"num_experts", 4}}, "num_experts_per_tok must be at most num_experts, 4");
  for (const int bad : {0, 65}) {
    refused({{"num_experts_per_tok", bad}},
            "num_experts_per_tok must be a whole number from 1 to 64");
  }
  for (const int bad : {0, 262145}) {
    refused({{"moe_intermediate_size", bad}},
            "moe_intermediate_size must be a whole number from 1 to 262144");
  }
  refused({{"norm_topk_prob", 1}}, "norm_topk_prob");
  refused({{"decoder_sparse_step", 0}}, "decoder_sparse_step must be a whole number from 1");
  refused({{"mlp_only_layers", Json{4}}}, "mlp_only_layers must be a whole number from 0 to 3");
  refused({{"mlp_only_layers", Json(5, 0)}},
          "mlp_only_layers must be a list of at most as many numbers as there are layers");
  refused({{"mlp_only_layers", 1}}, "mlp_only_layers must be a list");
  refused({{"num_hidden_layers", 400}}, "num_experts must be at most 32768 in all layers together");
}

}  // namespace
}  // namespace eta
