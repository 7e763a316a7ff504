#include "engine/model/model_config.h"

#include <tuple>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/base/temp_folder.h"

namespace eta {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

const Json& Good() {
  static const Json json = Json::parse(ReadFile(ETA_SOURCE_DIR "/models/eta-27m/config.json"));
  return json;
}

absl::StatusOr<ModelConfig> With(const std::string& field, const Json& value) {
  Json json = Good();
  json[field] = value;
  return ParseModelConfig(json.dump());
}

absl::StatusOr<ModelConfig> Without(const std::string& field) {
  Json json = Good();
  json.erase(field);
  return ParseModelConfig(json.dump());
}

TEST(ModelConfig, ReadsTheEmbeddedModel) {
  const auto config = ParseModelConfig(Good().dump()).value();
  EXPECT_EQ(config.vocab_size, 8192);
  EXPECT_EQ(config.model_dim, 512);
  EXPECT_EQ(config.ffn_dim, 1408);
  EXPECT_EQ(config.num_layers, 8);
  EXPECT_EQ(config.num_query_heads, 8);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_FLOAT_EQ(config.norm_eps, 1e-5f);
  EXPECT_FLOAT_EQ(config.rope_theta, 5e5f);
  EXPECT_EQ(config.max_context, 16384);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_TRUE(config.has_predictor);
  EXPECT_EQ(config.gate, Gate::kSilu);
  EXPECT_FLOAT_EQ(config.beta, 5.0f);
  EXPECT_EQ(config.block_size, 64);
  EXPECT_EQ(config.bos_id, 1);
  EXPECT_THAT(config.eos_ids, ElementsAre(2));
  EXPECT_EQ(config.index, IndexKind::kMoment);
  EXPECT_EQ(config.sink_blocks, 0);
  EXPECT_TRUE(config.shared_reads);
  EXPECT_TRUE(config.temper_special);
  EXPECT_FALSE(config.has_relative_thresholds());
}

TEST(ModelConfig, APlainLlamaHasNoGateAndNoPredictor) {
  const auto config = ParseModelConfig(R"({"model_type":"llama","vocab_size":32000,"hidden_size":64,
      "intermediate_size":128,"num_hidden_layers":2,"num_attention_heads":4,"rms_norm_eps":1e-6,
      "max_position_embeddings":2048,"rope_scaling":null,"eta_beta":3})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->has_predictor);
  EXPECT_EQ(config->gate, Gate::kNone);
  EXPECT_EQ(config->num_kv_heads, 4);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_FLOAT_EQ(config->rope_theta, 10000.0f);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_EQ(config->bos_id, -1);
  EXPECT_TRUE(config->eos_ids.empty());
  EXPECT_EQ(config->index, IndexKind::kOutlier);
  EXPECT_EQ(config->sink_blocks, 1);
  EXPECT_TRUE(config->shared_reads);
  EXPECT_FALSE(config->temper_special);
  EXPECT_TRUE(config->has_relative_thresholds());
}

TEST(ModelConfig, TheFileSaysHowAttentionGoesBeyondThePaper) {
  Json json = Good();
  json["eta_index"] = "outlier";
  json["eta_sink_blocks"] = 2;
  json["eta_reads"] = "shared";
  json["eta_special_keys"] = "temper";
  const auto gated = ParseModelConfig(json.dump()).value();
  EXPECT_EQ(gated.index, IndexKind::kOutlier);
  EXPECT_EQ(gated.sink_blocks, 2);
  EXPECT_TRUE(gated.shared_reads);
  EXPECT_TRUE(gated.temper_special);
  EXPECT_FALSE(gated.has_relative_thresholds()) << "it predicts its own";

  json["eta_gate"] = "none";
  json["eta_index"] = "moment";
  json["eta_sink_blocks"] = 0;
  json["eta_reads"] = "own";
  json["eta_special_keys"] = "attend";
  const auto plain = ParseModelConfig(json.dump()).value();
  EXPECT_EQ(plain.index, IndexKind::kMoment);
  EXPECT_EQ(plain.sink_blocks, 0);
  EXPECT_FALSE(plain.shared_reads);

  json["eta_special_keys"] = "temper";
  const auto tempers = ParseModelConfig(json.dump());
  EXPECT_EQ(tempers.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(tempers.status().message()),
              HasSubstr("eta_special_keys must be attend: the model has no gate"));
}

// bad input: config.json | `eta_index`, `eta_reads`, `eta_special_keys`, `eta_sink_blocks` unknown
//   or out of bounds | UNIMPLEMENTED or INVALID_ARGUMENT, named
TEST(ModelConfig, EveryOptionOfAttentionIsChecked) {
  const std::string sinks = " must be a whole number from 0 to 1024";
  const std::tuple<const char*, Json, std::string> cases[] = {
      {"eta_index", "mean", " 'mean' is not supported, only moment and outlier"},
      {"eta_index", 1, ""},
      {"eta_sink_blocks", -1, sinks},
      {"eta_sink_blocks", 1025, sinks},
      {"eta_sink_blocks", "one", sinks},
      {"eta_reads", "all", " 'all' is not supported, only own and shared"},
      {"eta_special_keys", "drop", ""},
      {"eta_special_keys", 1, ""}};
  for (const auto& [field, value, limit] : cases) {
    const auto config = With(field, value);
    EXPECT_FALSE(config.ok()) << field << value;
    EXPECT_THAT(std::string(config.status().message()),
                HasSubstr("config.json: " + (field + limit)));
  }
}

TEST(ModelConfig, SeveralEndsOfTextAndNewerRopeParametersAreRead) {
  EXPECT_THAT(With("eos_token_id", {2, 7}).value().eos_ids, ElementsAre(2, 7));
  const auto rope = With("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}});
  ASSERT_TRUE(rope.ok()) << rope.status();
  EXPECT_FLOAT_EQ(rope->rope_theta, 1e6f);
}

Json Llama3Scaling(const char* type_name) {
  return {{type_name, "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1},
          {"high_freq_factor", 4.5},
          {"original_max_position_embeddings", 8192}};
}

TEST(ModelConfig, Llama3ScalingIsReadWhereverFilesHaveIt) {
  Json parameters = Llama3Scaling("rope_type");
  parameters["rope_theta"] = 1e6;
  const std::pair<const char*, Json> cases[] = {{"rope_scaling", Llama3Scaling("rope_type")},
                                                {"rope_scaling", Llama3Scaling("type")},
                                                {"rope_parameters", parameters}};
  for (const auto& [field, value] : cases) {
    const auto config = With(field, value).value();
    const RopeScaling expected = {.type = RopeScalingType::kLlama3,
                                  .factor = 8.0,
                                  .low_freq_factor = 1.0,
                                  .high_freq_factor = 4.5,
                                  .original_context = 8192};
    EXPECT_TRUE(config.rope_scaling == expected) << field << value;
    EXPECT_FLOAT_EQ(config.rope_theta, value.contains("rope_theta") ? 1e6f : 5e5f);
  }
  for (const Json& none : {Json(), Json{{"rope_type", "default"}}}) {
    EXPECT_TRUE(With("rope_scaling", none)->rope_scaling == RopeScaling()) << none;
  }
}

// bad input: config.json | two RoPE scalings that differ | INVALID_ARGUMENT
TEST(ModelConfig, TwoRopeScalingsThatDifferAreRefused) {
  Json json = Good();
  json["rope_scaling"] = Llama3Scaling("type");
  json["rope_parameters"] = Llama3Scaling("rope_type");
  EXPECT_TRUE(ParseModelConfig(json.dump()).ok());
  Json changed = Llama3Scaling("rope_type");
  changed["factor"] = 32;
  for (const Json& other : {Json{{"rope_type", "default"}}, changed}) {
    json["rope_parameters"] = other;
    const auto config = ParseModelConfig(json.dump());
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << other;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr("rope_parameters"));
  }
}

TEST(ModelConfig, EveryNumberOfARopeScalingIsChecked) {
  const std::pair<const char*, Json> cases[] = {
      {"factor", nullptr},
      {"factor", 0.5},
      {"factor", 1e5},
      {"factor", "8"},
      {"low_freq_factor", nullptr},
      {"low_freq_factor", 0},
      {"low_freq_factor", -1},
      {"high_freq_factor", nullptr},
      {"high_freq_factor", 1},  // equals low_freq_factor
      {"high_freq_factor", 2e4},
      {"original_max_position_embeddings", nullptr},
      {"original_max_position_embeddings", 0},
      {"original_max_position_embeddings", 8192.5},
      {"original_max_position_embeddings", UINT64_MAX},
  };
  for (const char* object : {"rope_scaling", "rope_parameters"}) {
    for (const auto& [field, value] : cases) {
      Json scaling = Llama3Scaling("rope_type");
      scaling[field] = value;
      const auto config = With(object, scaling);
      EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << field << value;
      EXPECT_THAT(std::string(config.status().message()),
                  HasSubstr(std::string(object) + "." + field))
          << value;
    }
  }
}

TEST(ModelConfig, OtherRopeScalingsAreRefusedByName) {
  for (const char* type : {"longrope", "su", "ntk", "proportional", "mrope", ""}) {
    for (const char* key : {"rope_type", "type"}) {
      for (const char* object : {"rope_scaling", "rope_parameters"}) {
        const auto config = With(object, {{key, type}, {"factor", 8.0}});
        EXPECT_EQ(config.status().code(), absl::StatusCode::kUnimplemented) << type;
        EXPECT_THAT(std::string(config.status().message()),
                    HasSubstr(std::string(object) + ".rope_type '" + type + "'"));
      }
    }
  }
  EXPECT_EQ(With("rope_scaling", {{"factor", 8.0}}).status().code(),
            absl::StatusCode::kUnimplemented);
}

// bad input: config.json | a number out of bounds, a special id outside the vocabulary |
//   INVALID_ARGUMENT naming field and limit
TEST(ModelConfig, EveryFieldOutOfBoundsIsNamedWithItsLimit) {
  const std::pair<const char*, Json> cases[] = {
      {"vocab_size", 0},
      {"vocab_size", -5},
      {"vocab_size", 1048577},
      {"vocab_size", UINT64_MAX},
      {"vocab_size", INT64_MIN},
      {"vocab_size", 8192.0},
      {"vocab_size", "8192"},
      {"vocab_size", true},
      {"hidden_size", 65537},
      {"intermediate_size", 0},
      {"num_hidden_layers", 513},
      {"num_attention_heads", 1025},
      {"num_key_value_heads", 0},
      {"num_key_value_heads", 3},
      {"head_dim", 63},
      {"head_dim", 0},
      {"head_dim", 258},
      {"head_dim", "64"},
      {"rms_norm_eps", 0},
      {"rms_norm_eps", -1e-5},
      {"rms_norm_eps", 1},
      {"rms_norm_eps", "1e-5"},
      {"rope_theta", 0},
      {"rope_theta", 1e13},
      {"rope_theta", Json::array()},
      {"max_position_embeddings", 0},
      {"max_position_embeddings", 16777217},
      {"tie_word_embeddings", 1},
      {"tie_word_embeddings", "true"},
      {"eta_beta", 0},
      {"eta_beta", 1001},
      {"eta_beta", "5"},
      {"eta_block_size", 0},
      {"eta_block_size", 2},
      {"eta_block_size", 66},
      {"eta_block_size", 2048},
      {"bos_token_id", 8192},
      {"bos_token_id", -1},
      {"eos_token_id", 8192},
      {"eos_token_id", Json{1, 8192}},
      {"eos_token_id", Json(std::vector<int>(17, 1))},
      {"eos_token_id", Json::array({Json::array()})},
      {"eos_token_id", "2"},
      {"model_type", 1},
      {"hidden_act", 1},
      {"attention_bias", "no"},
      {"rope_parameters", 1},
      {"rope_scaling", "llama3"},
      {"rope_scaling", {{"rope_type", 1}}},
  };
  for (const auto& [field, value] : cases) {
    const auto config = With(field, value);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << field << " " << value;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(field)) << value;
  }
  EXPECT_THAT(std::string(With("bos_token_id", 8192).status().message()),
              HasSubstr("config.json: bos_token_id must be a whole number from 0 to 8191"));
  const auto grouped = [] {
    Json json = Good();
    json["num_attention_heads"] = 66;
    json["num_key_value_heads"] = 2;
    return ParseModelConfig(json.dump());
  }();
  EXPECT_THAT(grouped.status(), FailsSaying(absl::StatusCode::kInvalidArgument, "32"));
}

TEST(ModelConfig, RequiredFieldsMayNotBeMissing) {
  for (const char* field :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "rms_norm_eps", "max_position_embeddings", "eta_beta"}) {
    const auto config = Without(field);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_THAT(std::string(config.status().message()),
                HasSubstr(std::string(field) + " is missing"));
  }
  EXPECT_TRUE(Without("head_dim").ok());
  EXPECT_TRUE(Without("eta_block_size").ok());
}

// bad input: config.json | experts of a family that has none, partial rotation | UNIMPLEMENTED, the
//   field named
TEST(ModelConfig, WhatWouldChangeTheResultIsUnimplementedNotIgnored) {
  const std::pair<const char*, Json> cases[] = {
      {"attention_bias", true},
      {"mlp_bias", true},
      {"hidden_act", "gelu"},
      {"model_type", "mixtral"},
      {"model_type", ""},
      {"eta_gate", "tanh"},
      {"sliding_window", 4096},
      {"quantization_config", {{"bits", 4}}},
      {"partial_rotary_factor", 0.5},
      {"num_experts", 8},
      {"num_local_experts", 8},
  };
  for (const char* field : {"num_local_experts", "partial_rotary_factor"}) {
    EXPECT_THAT(std::string(With(field, 0.5).status().message()),
                HasSubstr(std::string("config.json: ") + field + " is not supported"));
  }
  for (const auto& [field, value] : cases) {
    const auto config = With(field, value);
    EXPECT_THAT(config.status(), FailsSaying(absl::StatusCode::kUnimplemented, field)) << field;
  }
}

TEST(ModelConfig, UnknownFieldsAreIgnored) {
  EXPECT_TRUE(With("made_up", {{"deep", {1, 2, {3}}}}).ok());
}

TEST(ModelConfig, TheFileIsBoundedJson) {
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{"), std::string("nul"), std::string("{}x"),
        std::string("{\"a\":\"\xC0\x80\"}"), std::string("{}\0", 3), Good().dump() + "}",
        std::string("{\"vocab_size\":1,\"vocab_size\":2}"), "{\"a\":" + std::string(100'000, '['),
        "{\"a\":\"" + std::string(size_t{1} << 20, 'x') + "\"}"}) {
    EXPECT_EQ(ParseModelConfig(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text.substr(0, 40);
  }
  EXPECT_THAT(std::string(ParseModelConfig("{").status().message()),
              HasSubstr("config.json is not JSON"));
}

class TensorListTest : public testing::Test {
 protected:
  TensorListTest() : config_(*ParseModelConfig(Good().dump())) {
    for (const auto& [name, shape] : ExpectedTensors(config_)) {
      tensors_[name] = {.dtype = DType::kBFloat16, .shape = shape, .begin = 0, .end = 0};
    }
  }
  std::string Differences() const {
    const absl::Status status = ValidateTensors(config_, tensors_);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  }

  ModelConfig config_;
  std::map<std::string, TensorInfo> tensors_;
};

TEST_F(TensorListTest, TheExpectedTensorsFit) {
  EXPECT_EQ(tensors_.size(), 90u);
  EXPECT_THAT(tensors_.at("model.layers.7.self_attn.tau_proj.weight").shape, ElementsAre(8, 512));
  EXPECT_THAT(tensors_.at("model.layers.0.self_attn.k_proj.weight").shape, ElementsAre(128, 512));
  EXPECT_TRUE(ValidateTensors(config_, tensors_).ok());
}

// bad input: Weights | `lm_head.weight` in a tied model | counts where it differs from the
//   embedding; of another shape FAILED_PRECONDITION
TEST_F(TensorListTest, UntiedModelsNeedAHeadAndTiedOnesMayShipIt) {
  config_.tie_word_embeddings = false;
  EXPECT_THAT(Differences(), HasSubstr("'lm_head.weight' is missing"));
  tensors_["lm_head.weight"] = tensors_["model.embed_tokens.weight"];
  EXPECT_TRUE(ValidateTensors(config_, tensors_).ok());
  config_.tie_word_embeddings = true;
  EXPECT_TRUE(ValidateTensors(config_, tensors_).ok());
  tensors_["lm_head.weight"].shape = {512, 8192};
  EXPECT_THAT(Differences(), HasSubstr("'lm_head.weight' has shape [512, 8192]"));
}

// bad input: Weights | type, shape, missing or extra tensor against the config |
//   FAILED_PRECONDITION, named
TEST_F(TensorListTest, EveryKindOfDifferenceIsNamed) {
  tensors_.erase("model.norm.weight");
  tensors_["model.layers.0.mlp.up_proj.weight"].shape = {512, 1408};
  tensors_["model.layers.1.mlp.up_proj.weight"].dtype = DType::kInt8;
  tensors_["model.layers.8.mlp.up_proj.weight"] = tensors_["model.layers.7.mlp.up_proj.weight"];
  const std::string message = Differences();
  EXPECT_THAT(message, HasSubstr("4 differences"));
  EXPECT_THAT(message, HasSubstr("'model.norm.weight' is missing"));
  EXPECT_THAT(message, HasSubstr("has shape [512, 1408], expected [1408, 512]"));
  EXPECT_THAT(message, HasSubstr("has dtype int8, expected float32, float16 or bfloat16"));
  EXPECT_THAT(message, HasSubstr("'model.layers.8.mlp.up_proj.weight' is not expected"));
}

// bad input: Weights | biases or norms of heads missing, of another length | FAILED_PRECONDITION,
//   the tensor named
TEST_F(TensorListTest, BiasesAndNormsOfHeadsAreThoseOfTheFamily) {
  config_.qkv_bias = config_.head_norms = true;
  const auto expected = ExpectedTensors(config_);
  tensors_["model.layers.0.self_attn.v_proj.bias"] = {DType::kBFloat16, {32}, 0, 0};
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    for (const char* name : {"q_proj.bias", "k_proj.bias", "v_proj.bias", "q_norm.weight"}) {
      const std::string tensor = absl::StrCat("model.layers.", layer, ".self_attn.", name);
      tensors_.try_emplace(tensor, TensorInfo{DType::kBFloat16, expected.at(tensor), 0, 0});
    }
  }
  tensors_.erase("model.layers.1.self_attn.k_proj.bias");
  const std::string message = Differences();
  EXPECT_THAT(message, HasSubstr("'model.layers.0.self_attn.v_proj.bias' has shape [32], expected "
                                 "[128]"));
  EXPECT_THAT(message, HasSubstr("'model.layers.1.self_attn.k_proj.bias' is missing"));
  EXPECT_THAT(message, HasSubstr("'model.layers.0.self_attn.k_norm.weight' is missing"));
}

// bad input: Weights | learned sinks missing, of another length | FAILED_PRECONDITION, the tensor
//   named
TEST_F(TensorListTest, EveryHeadHasASink) {
  config_.sinks = true;
  tensors_.clear();
  for (const auto& [name, shape] : ExpectedTensors(config_)) {
    tensors_[name] = {.dtype = DType::kBFloat16, .shape = shape, .begin = 0, .end = 0};
  }
  EXPECT_TRUE(ValidateTensors(config_, tensors_).ok());
  tensors_.erase("model.layers.0.self_attn.sinks");
  tensors_["model.layers.1.self_attn.sinks"].shape = {7};
  tensors_["model.layers.2.self_attn.sinks"].shape = {4, 2};
  const std::string message = Differences();
  EXPECT_THAT(message, HasSubstr("3 differences"));
  EXPECT_THAT(message, HasSubstr("'model.layers.0.self_attn.sinks' is missing"));
  EXPECT_THAT(message, HasSubstr("'model.layers.1.self_attn.sinks' has shape [7], expected [8]"));
  EXPECT_THAT(message,
              HasSubstr("'model.layers.2.self_attn.sinks' has shape [4, 2], expected [8]"));
}

// bad input: Weights | a router or an expert missing, an expert or a shape too many |
//   FAILED_PRECONDITION, the tensor named
TEST_F(TensorListTest, EveryExpertIsNamed) {
  config_.num_experts = 3;
  config_.experts_per_token = 2;
  config_.expert_ffn_dim = 96;
  config_.expert_layers.assign(8, false);
  config_.expert_layers[7] = true;
  tensors_.clear();
  for (const auto& [name, shape] : ExpectedTensors(config_)) {
    tensors_[name] = {.dtype = DType::kBFloat16, .shape = shape, .begin = 0, .end = 0};
  }
  EXPECT_TRUE(ValidateTensors(config_, tensors_).ok());
  const std::string mlp = "model.layers.7.mlp.";
  tensors_.erase(mlp + "gate.weight");
  tensors_.erase(mlp + "experts.1.up_proj.weight");
  tensors_[mlp + "experts.2.down_proj.weight"].shape = {96, 512};
  tensors_[mlp + "experts.3.down_proj.weight"] = tensors_[mlp + "experts.0.down_proj.weight"];
  tensors_[mlp + "up_proj.weight"] = tensors_["model.layers.6.mlp.up_proj.weight"];
  const std::string message = Differences();
  EXPECT_THAT(message, HasSubstr("5 differences"));
  EXPECT_THAT(message, HasSubstr("'" + mlp + "gate.weight' is missing"));
  EXPECT_THAT(message, HasSubstr("'" + mlp + "experts.1.up_proj.weight' is missing"));
  EXPECT_THAT(message, HasSubstr("'" + mlp +
                                 "experts.2.down_proj.weight' has shape [96, 512], expected "
                                 "[512, 96]"));
  EXPECT_THAT(message, HasSubstr("'" + mlp + "experts.3.down_proj.weight' is not expected"));
  EXPECT_THAT(message, HasSubstr("'" + mlp + "up_proj.weight' is not expected"));
}

// bad input: Weights | nearly all tensors missing | FAILED_PRECONDITION, the first 10 listed
TEST_F(TensorListTest, TheFirstTenOfManyAreListed) {
  tensors_.clear();
  const std::string message = Differences();
  EXPECT_THAT(message, HasSubstr("the tensors do not fit config.json, 90 differences"));
  EXPECT_EQ(std::count(message.begin(), message.end(), ';'), 9);
}

TEST_F(TensorListTest, StoredRotaryFrequenciesAreAKnownExtra) {
  tensors_["model.layers.0.self_attn.rotary_emb.inv_freq"] = {DType::kFloat32, {32}, 0, 0};
  EXPECT_TRUE(ValidateTensors(config_, tensors_).ok());
}

}  // namespace
}  // namespace eta
