// config.json of Gemma 3: norms, scales, windows and two rotations.

#include <cmath>
#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/status_reason.h"

namespace eta {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;

// gemma-3-4b-it's text_config, as it was published, less the scaling.
Json Smallest(int32_t layers = 34) {
  return {{"model_type", "gemma3_text"},
          {"hidden_size", 2560},
          {"intermediate_size", 10240},
          {"num_hidden_layers", layers},
          {"sliding_window", 1024}};
}

absl::StatusOr<ModelConfig> ParseGemma(const Json& others = Json::object(), int32_t layers = 34) {
  Json json = Smallest(layers);
  json.update(others);
  return ParseModelConfig(json.dump());
}

void ExpectGemmaRefused(const Json& others, absl::StatusCode code, const std::string& words) {
  EXPECT_THAT(ParseGemma(others).status(), FailsSaying(code, words)) << others;
}

TEST(GemmaConfig, WhatTheFileDoesNotNameIsAsInTransformers) {
  const auto config =
      ParseGemma({{"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}}}).value();
  EXPECT_EQ(config.vocab_size, 262208);
  EXPECT_EQ(config.num_query_heads, 8);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.norm_eps, 1e-6f);
  EXPECT_EQ(config.max_context, 131072) << "the length behind the scaling";
  EXPECT_EQ(config.rope_theta, 1e6f);
  EXPECT_EQ(config.local_rope_theta, 1e4f);
  EXPECT_EQ(config.rope_scaling.type, RopeScalingType::kLinear);
  EXPECT_EQ(config.rope_scaling.factor, 8.0);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_TRUE(config.head_norms && config.post_norms && config.unit_norms);
  EXPECT_EQ(config.activation, Activation::kGelu);
  EXPECT_EQ(config.softmax_scale(), 1.0f / 16);
  EXPECT_EQ(config.sliding_window, 1024);
  for (int32_t i = 0; i < 34; ++i) {
    EXPECT_EQ(config.layer(i).window, i % 6 == 5 ? 0 : 1024) << i;
    EXPECT_EQ(config.layer(i).local_rope, i % 6 != 5) << i;
    EXPECT_TRUE(config.layer(i).rotates);
  }
  EXPECT_EQ(ParseGemma({{"sliding_window", 512}, {"query_pre_attn_scalar", 168}})->softmax_scale(),
            static_cast<float>(1.0 / std::sqrt(168.0)));
}

TEST(GemmaConfig, TheEmbeddingsScaleIsRoundedToTheTypeOfTheWeights) {
  const float root = std::sqrt(2560.0f);  // 50.596443
  EXPECT_EQ(ParseGemma()->embedding_scale, root);
  EXPECT_EQ(ParseGemma({{"dtype", "float32"}})->embedding_scale, root);
  EXPECT_EQ(ParseGemma({{"dtype", "bfloat16"}})->embedding_scale, 50.5f);
  EXPECT_EQ(ParseGemma({{"torch_dtype", "bfloat16"}})->embedding_scale, 50.5f);
  EXPECT_EQ(ParseGemma({{"torch_dtype", "bfloat16"}, {"dtype", "float16"}})->embedding_scale,
            50.59375f);
  EXPECT_EQ(ParseModelConfig(R"({"model_type":"llama","vocab_size":64,"hidden_size":128,
      "intermediate_size":64,"num_hidden_layers":1,"num_attention_heads":2,"rms_norm_eps":1e-5,
      "max_position_embeddings":2048,"torch_dtype":"bfloat16"})")
                ->embedding_scale,
            1.0f);
}

TEST(GemmaConfig, WindowsAreOfTheLayersThatAreListedOrOfAPeriod) {
  const auto windows = [](const Json& others) {
    const auto config = ParseGemma(others, 4);
    EXPECT_TRUE(config.ok()) << config.status();
    std::vector<int32_t> all;
    for (int32_t i = 0; config.ok() && i < 4; ++i) all.push_back(config->layer(i).window);
    return all;
  };
  EXPECT_THAT(windows(Json::object()), ElementsAre(1024, 1024, 1024, 1024));
  EXPECT_THAT(windows({{"sliding_window_pattern", 3}}), ElementsAre(1024, 1024, 0, 1024));
  EXPECT_THAT(windows({{"sliding_window_pattern", 1}}), ElementsAre(0, 0, 0, 0));
  const Json named = {"full_attention", "sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_THAT(windows({{"layer_types", named}, {"sliding_window_pattern", 3}}),
              ElementsAre(0, 1024, 0, 1024));
  // A layer that sees all keys because its window is as long still turns as its kind does.
  const ModelConfig full = ForContext(ParseGemma({{"layer_types", named}}, 4).value(), 1024);
  EXPECT_EQ(full.num_full_layers(), 4);
  EXPECT_FALSE(full.layer(0).local_rope);
  EXPECT_TRUE(full.layer(1).local_rope);
}

TEST(GemmaConfig, RotationsAreReadInBothForms) {
  const auto older = ParseGemma({{"rope_theta", 5e5},
                                 {"rope_local_base_freq", 7e3},
                                 {"rope_scaling", {{"factor", 4.0}, {"rope_type", "linear"}}}})
                         .value();
  const Json full = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 5e5}};
  const Json sliding = {{"rope_type", "default"}, {"rope_theta", 7e3}};
  const auto newer =
      ParseGemma({{"rope_parameters", {{"full_attention", full}, {"sliding_attention", sliding}}}});
  EXPECT_EQ(*newer, older);
  EXPECT_EQ(older.local_rope_theta, 7e3f);
  EXPECT_EQ(older.rope_theta, 5e5f);
  const auto usual = ParseGemma().value();
  for (const Json& said : {Json(nullptr), Json::object(), Json{{"full_attention", nullptr}},
                           Json{{"sliding_attention", Json::object()}}}) {
    EXPECT_EQ(*ParseGemma({{"rope_parameters", said}}), usual) << said;
  }
}

// bad input: config.json | Gemma 3: caps of logits, attention to later tokens, another gate, a
// scale
//   of queries out of bounds, no window where layers have one, a period of 0, a rotation of windows
//   that is scaled or unknown | UNIMPLEMENTED or INVALID_ARGUMENT, naming the field
TEST(GemmaConfig, WhatIsNotComputedIsRefusedByName) {
  const auto unsupported = absl::StatusCode::kUnimplemented;
  ExpectGemmaRefused({{"attn_logit_softcapping", 50.0}}, unsupported, "attn_logit_softcapping");
  ExpectGemmaRefused({{"final_logit_softcapping", 30.0}}, unsupported, "final_logit_softcapping");
  ExpectGemmaRefused({{"use_bidirectional_attention", true}}, unsupported,
                     "use_bidirectional_attention true is not supported");
  ExpectGemmaRefused({{"hidden_activation", "silu"}}, unsupported,
                     "hidden_activation 'silu' is not supported, only gelu_pytorch_tanh");
  ExpectGemmaRefused({{"attention_bias", true}}, unsupported, "attention_bias");
  ExpectGemmaRefused({{"sliding_window", nullptr}}, unsupported, "sliding_window null");
  ExpectGemmaRefused(
      {{"rope_parameters", {{"sliding_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}}}},
      unsupported, "rope_parameters.sliding_attention.rope_type 'linear' is not supported");
  ExpectGemmaRefused({{"rope_parameters", {{"sliding_attention", {{"base", 2.0}}}}}}, unsupported,
                     "rope_parameters.sliding_attention.'base' is not known");
  const auto invalid = absl::StatusCode::kInvalidArgument;
  for (const Json& bad : {Json(0), Json(-256), Json(1e9), Json("256")}) {
    ExpectGemmaRefused({{"query_pre_attn_scalar", bad}}, invalid, "query_pre_attn_scalar");
  }
  ExpectGemmaRefused({{"sliding_window_pattern", 0}}, invalid,
                     "sliding_window_pattern must be a whole number from 1");
  ExpectGemmaRefused({{"sliding_window", 0}}, invalid, "sliding_window must be a whole number");
  ExpectGemmaRefused({{"rope_local_base_freq", 0.5}}, invalid, "rope_local_base_freq");
  ExpectGemmaRefused({{"rope_parameters", {{"sliding_attention", 1e4}}}}, invalid,
                     "rope_parameters.sliding_attention must be an object");
  ExpectGemmaRefused({{"rope_parameters", {{"full_attention", 1e6}}}}, invalid,
                     "rope_parameters must be an object of objects");
}

TEST(GemmaConfig, ALayerHasFourNorms) {
  const auto tensors = ExpectedTensors(*ParseGemma());
  for (const char* norm : {"input_layernorm", "post_attention_layernorm",
                           "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
    EXPECT_THAT(tensors.at(std::string("model.layers.33.") + norm + ".weight"), ElementsAre(2560));
  }
  EXPECT_THAT(tensors.at("model.layers.0.self_attn.q_norm.weight"), ElementsAre(256));
  EXPECT_FALSE(tensors.contains("lm_head.weight"));
}

}  // namespace
}  // namespace eta
