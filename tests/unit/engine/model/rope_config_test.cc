// The scalings of RoPE in config.json, and the numbers that transformers 5.24.0 makes of them.

#include "engine/model/rope/rope_config.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/rope/rope_base.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

Json Llama() {
  return {{"model_type", "llama"},  {"vocab_size", 64},
          {"hidden_size", 128},     {"intermediate_size", 64},
          {"num_hidden_layers", 1}, {"num_attention_heads", 2},
          {"rms_norm_eps", 1e-5},   {"max_position_embeddings", 2048},
          {"rope_theta", 10000.0}};
}

absl::StatusOr<ModelConfig> WithScaling(const Json& scaling, const Json& others = Json::object()) {
  Json json = Llama();
  json.update(others);
  json["rope_scaling"] = scaling;
  return ParseModelConfig(json.dump());
}

void ExpectRefused(const Json& scaling, absl::StatusCode code, const std::string& words,
                   const Json& others = Json::object()) {
  const auto config = WithScaling(scaling, others);
  EXPECT_EQ(config.status().code(), code) << scaling;
  EXPECT_THAT(std::string(config.status().message()), HasSubstr(words)) << scaling;
}

TEST(RopeConfig, BothSpellingsAreReadForEveryType) {
  for (const char* type : {"default", "linear", "dynamic", "yarn"}) {
    Json scaling = {{"factor", 4.0}, {"original_max_position_embeddings", 512}};
    Json parameters = scaling;
    parameters["rope_type"] = type;
    parameters["rope_theta"] = 5e5;
    Json json = Llama();
    json.erase("rope_theta");
    json["rope_parameters"] = parameters;
    const auto newer = ParseModelConfig(json.dump()).value();
    for (const char* key : {"type", "rope_type"}) {
      Json older = scaling;
      older[key] = type;
      const auto config = WithScaling(older, {{"rope_theta", 5e5}}).value();
      EXPECT_TRUE(config.rope_scaling == newer.rope_scaling) << type;
      EXPECT_EQ(config.max_context, newer.max_context) << type;
      EXPECT_EQ(config.rope_theta, newer.rope_theta) << type;
      EXPECT_EQ(config.rope_scaling == RopeScaling(), std::string(type) == "default");
    }
  }
}

// Files of these types give the length before the scaling.
TEST(RopeConfig, TheTrainedLengthIncludesTheScaling) {
  const auto trained = [](const Json& scaling) { return WithScaling(scaling)->max_context; };
  EXPECT_EQ(trained(nullptr), 2048);
  EXPECT_EQ(trained({{"type", "linear"}, {"factor", 4.0}}), 8192);
  EXPECT_EQ(trained({{"type", "linear"}, {"factor", 1e4}}), 1 << 24);
  EXPECT_EQ(trained({{"type", "dynamic"}, {"factor", 4.0}}), 2048);
  EXPECT_EQ(trained({{"type", "yarn"}, {"factor", 4.0}}), 8192);
  EXPECT_EQ(trained({{"type", "yarn"}, {"original_max_position_embeddings", 512}}), 2048);
  const Json stretched = {
      {"type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 2048}};
  EXPECT_EQ(trained(stretched), 16384);
  Json within = stretched;
  within["original_max_position_embeddings"] = 64;
  EXPECT_EQ(trained(within), 2048);
}

TEST(RopeConfig, DynamicScalingHasTheBaseOfTransformers) {
  const auto config = WithScaling({{"rope_type", "dynamic"}, {"factor", 3.0}}).value();
  EXPECT_EQ(RopeTheta(config, 2048), 10000.0f);
  EXPECT_FLOAT_EQ(RopeTheta(config, 2560), 17818.78082f);
  EXPECT_FLOAT_EQ(RopeTheta(config, 3072), 25749.97331f);
  EXPECT_FLOAT_EQ(RopeTheta(config, 4096), 41829.36593f);
  EXPECT_EQ(RopeTheta(config, 2049), RopeTheta(config, 2560)) << "in steps, as every base";
  EXPECT_EQ(RopeFactor(config, 2049), 1.25f);
}

struct YarnCase {
  Json scaling;
  Json others;
  double attention_factor;
  int32_t every;                // of the pairs, one in so many:
  std::vector<double> stretch;  // its scaled frequency over the unscaled one
};

TEST(RopeConfig, YarnHasTheFrequenciesOfTransformers) {
  const Json wide = {{"head_dim", 128}, {"rope_theta", 1e6}, {"max_position_embeddings", 32768}};
  const YarnCase cases[] = {
      {{{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}},
       wide,
       1.138629436111989,
       8,
       {1.0, 1.0, 1.0, 0.9558824, 0.6029411, 0.25, 0.25, 0.25}},
      {{{"type", "yarn"}, {"factor", 4.0}, {"truncate", false}},
       wide,
       1.138629436111989,
       8,
       {1.0, 1.0, 1.0, 0.9811248, 0.607408, 0.25, 0.25, 0.25}},
      {{{"type", "yarn"},
        {"factor", 40},
        {"original_max_position_embeddings", 4096},
        {"mscale", 1.0},
        {"mscale_all_dim", 0.707}},
       Json::object(),
       1.0857263992561355,
       4,
       {1.0, 1.0, 1.0, 0.85, 0.55, 0.25, 0.025, 0.025}},
      {{{"type", "yarn"},
        {"factor", 40},
        {"original_max_position_embeddings", 4096},
        {"beta_fast", 16},
        {"beta_slow", 2},
        {"mscale", 1.0},
        {"mscale_all_dim", 0.707},
        {"attention_factor", 0.5}},
       Json::object(),
       0.5,
       4,
       {1.0, 1.0, 1.0, 1.0, 0.5666667, 0.1333333, 0.025, 0.025}},
      // Without a factor it is the ratio of both lengths. 0 and null stand for the defaults.
      {{{"type", "yarn"},
        {"factor", nullptr},
        {"original_max_position_embeddings", 2048},
        {"beta_fast", 0},
        {"beta_slow", nullptr},
        {"mscale", 2.0},
        {"mscale_all_dim", 0},
        {"finetuned", true}},
       {{"max_position_embeddings", 8192}},
       1.138629436111989,
       4,
       {1.0, 1.0, 1.0, 0.7692308, 0.5384615, 0.3076923, 0.25, 0.25}},
      // Lengths that no pair turns in, and that every pair turns in many times.
      {{{"type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 4}},
       Json::object(),
       1.0693147180559945,
       4,
       {1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0}},
      {{{"type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 100000}},
       {{"rope_theta", 5.0}},
       1.0693147180559945,
       4,
       {0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5}},
  };
  for (const YarnCase& wanted : cases) {
    const auto config = WithScaling(wanted.scaling, wanted.others).value();
    const RopeScaling& scaling = config.rope_scaling;
    EXPECT_DOUBLE_EQ(scaling.attention_factor, wanted.attention_factor) << wanted.scaling;
    for (size_t i = 0; i < wanted.stretch.size(); ++i) {
      const auto pair = static_cast<int32_t>(i) * wanted.every;
      EXPECT_NEAR(scaling.Scaled(0.1, pair) / 0.1, wanted.stretch[i], 2e-7)
          << wanted.scaling << ", pair " << pair;
    }
  }
}

// bad input: config.json | a number of a RoPE scaling out of bounds | INVALID_ARGUMENT naming field
//   and limit
TEST(RopeConfig, EveryFieldOfEveryScalingIsChecked) {
  const std::pair<const char*, Json> cases[] = {
      {"factor", 0.5},
      {"factor", "4"},
      {"factor", 1e5},
      {"original_max_position_embeddings", 0},
      {"original_max_position_embeddings", 1e9},
      {"beta_fast", -1},
      {"beta_fast", 0.5},  // below beta_slow
      {"beta_fast", "32"},
      {"beta_slow", 1e7},
      {"mscale", -1.0},
      {"mscale_all_dim", 1e4},
      {"attention_factor", 0},
      {"attention_factor", "1"},
      {"truncate", 1},
      {"rope_theta", 1.0},
  };
  for (const auto& [field, value] : cases) {
    Json scaling = {{"type", "yarn"}, {"factor", 4.0}};
    scaling[field] = value;
    ExpectRefused(scaling, absl::StatusCode::kInvalidArgument,
                  std::string("rope_scaling.") + field);
  }
  for (const char* type : {"linear", "dynamic"}) {
    ExpectRefused({{"type", type}}, absl::StatusCode::kInvalidArgument,
                  "rope_scaling.factor is missing");
    ExpectRefused({{"type", type}, {"factor", 0.99}}, absl::StatusCode::kInvalidArgument,
                  "rope_scaling.factor");
  }
  ExpectRefused({{"type", "yarn"}, {"factor", 1e9}}, absl::StatusCode::kInvalidArgument,
                "config.json: rope_scaling.factor must be a number from 1 to 10000");
  ExpectRefused({{"type", "yarn"}, {"original_max_position_embeddings", 4096}},
                absl::StatusCode::kInvalidArgument, "original_max_position_embeddings");
}

// bad input: config.json | a RoPE scaling of unknown type or with an unknown field | UNIMPLEMENTED,
//   named
TEST(RopeConfig, WhatIsNotKnownIsRefusedByName) {
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  const Json linear = {{"type", "linear"}, {"factor", 2.0}};
  for (const char* field : {"alpha", "mrope_section", "short_factor", "full_attention"}) {
    Json scaling = linear;
    scaling[field] = 1;
    ExpectRefused(scaling, kUnimplemented,
                  std::string("rope_scaling.'") + field + "' is not known");
  }
  Json partial = linear;
  partial["partial_rotary_factor"] = 1.0;
  EXPECT_TRUE(WithScaling(partial).ok());
  partial["partial_rotary_factor"] = 0.5;
  ExpectRefused(partial, kUnimplemented, "rope_scaling.partial_rotary_factor");
  ExpectRefused({{"type", "yarn"}, {"factor", 2.0}}, kUnimplemented,
                "original_max_position_embeddings", {{"original_max_position_embeddings", 512}});
  ExpectRefused({{"type", "longrope"}}, kUnimplemented, "rope_scaling.rope_type 'longrope' is not");
}

}  // namespace
}  // namespace eta
