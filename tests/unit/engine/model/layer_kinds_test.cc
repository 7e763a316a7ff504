// What config.json says of the layers of a model: which have RoPE, and which have a window.

#include "engine/model/layer_kinds.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/status_reason.h"

namespace eta {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr int32_t kLayers = 4;

absl::StatusOr<ModelConfig> ParseLayers(const std::string& model_type,
                                        const Json& others = Json::object()) {
  Json json = {{"model_type", model_type},
               {"vocab_size", 64},
               {"hidden_size", 256},
               {"intermediate_size", 64},
               {"num_hidden_layers", kLayers},
               {"num_attention_heads", 4},
               {"num_key_value_heads", 2},
               {"rms_norm_eps", 1e-6},
               {"max_position_embeddings", 32768}};
  json.update(others);
  return ParseModelConfig(json.dump());
}

void ExpectLayersRefused(const absl::StatusOr<ModelConfig>& config, absl::StatusCode code,
                         const std::string& words) {
  EXPECT_THAT(config.status(), FailsSaying(code, words)) << words;
}

// Of each layer, by the accessor.
std::vector<bool> RotationsOf(const std::string& model_type, const Json& others) {
  const auto config = ParseLayers(model_type, others);
  EXPECT_TRUE(config.ok()) << config.status();
  std::vector<bool> rotates;
  for (int32_t i = 0; config.ok() && i < config->num_layers; ++i) {
    rotates.push_back(config->layer(i).rotates);
  }
  return rotates;
}

TEST(LayerKinds, EveryFourthLayerOfASmolLM3HasNoRope) {
  EXPECT_THAT(RotationsOf("smollm3", Json::object()), ElementsAre(true, true, true, false));
  EXPECT_THAT(RotationsOf("smollm3", {{"no_rope_layers", nullptr}}),
              ElementsAre(true, true, true, false));
  EXPECT_THAT(RotationsOf("smollm3", {{"num_hidden_layers", 9}}),
              ElementsAre(true, true, true, false, true, true, true, false, true));
}

TEST(LayerKinds, AnotherIntervalOrAListSaysOtherwise) {
  const auto by_interval = [](int32_t interval) {
    return RotationsOf("smollm3", {{"no_rope_layer_interval", interval}});
  };
  EXPECT_THAT(by_interval(1), ElementsAre(false, false, false, false));
  EXPECT_THAT(by_interval(2), ElementsAre(true, false, true, false));
  EXPECT_THAT(by_interval(3), ElementsAre(true, true, false, true));
  EXPECT_THAT(by_interval(5), ElementsAre(true, true, true, true));
  EXPECT_THAT(by_interval(1 << 20), ElementsAre(true, true, true, true));
  Json listed = {{"no_rope_layers", {0, 1, 1, 0}}};
  EXPECT_THAT(RotationsOf("smollm3", listed), ElementsAre(false, true, true, false));
  // The interval is not read beside a list, and a list may be longer than the model.
  listed["no_rope_layer_interval"] = 0;
  listed["no_rope_layers"].push_back(0);
  listed["no_rope_layers"].push_back("past the last layer");
  EXPECT_THAT(RotationsOf("smollm3", listed), ElementsAre(false, true, true, false));
}

TEST(LayerKinds, LayersThatAreAllAlikeHaveOneForm) {
  for (const Json& said : {Json{{"no_rope_layers", {1, 1, 1, 1}}},
                           Json{{"no_rope_layer_interval", 7}}, Json{{"num_hidden_layers", 3}}}) {
    EXPECT_THAT(ParseLayers("smollm3", said)->layers, IsEmpty()) << said;
  }
  EXPECT_THAT(LayersByInterval(3, 4), IsEmpty());
  EXPECT_EQ(LayersByInterval(kLayers, 4), ParseLayers("smollm3")->layers);
}

TEST(LayerKinds, OtherFamiliesHaveRopeInEveryLayer) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe"}) {
    const auto config = ParseLayers(type, {{"no_rope_layers", {0, 0, "?"}},
                                           {"no_rope_layer_interval", 0},
                                           {"sliding_window", nullptr}});
    ASSERT_TRUE(config.ok()) << "as in transformers neither field is read: " << config.status();
    EXPECT_THAT(config->layers, IsEmpty()) << type;
  }
}

// bad input: config.json | `no_rope_layers` too short, no list, or with what is neither 0 nor 1;
//   `no_rope_layer_interval` 0, negative, huge | INVALID_ARGUMENT naming field and limit
TEST(LayerKinds, ListsAndIntervalsThatSayNothingAreRefused) {
  for (const Json& bad : {Json::array(), Json{1, 1, 0}, Json(1), Json("1110"), Json(true),
                          Json::object({{"0", 1}, {"1", 1}, {"2", 1}, {"3", 0}})}) {
    ExpectLayersRefused(ParseLayers("smollm3", {{"no_rope_layers", bad}}),
                        absl::StatusCode::kInvalidArgument,
                        "no_rope_layers must be a list with an entry for each layer");
  }
  for (const Json& bad : {Json(2), Json(-1), Json(0.5), Json("1"), Json(true), Json(nullptr)}) {
    ExpectLayersRefused(ParseLayers("smollm3", {{"no_rope_layers", {1, 1, bad, 0}}}),
                        absl::StatusCode::kInvalidArgument,
                        "no_rope_layers must be a whole number from 0 to 1");
  }
  for (const Json& bad :
       {Json(0), Json(-4), Json((1 << 20) + 1), Json(2.5), Json("4"), Json(1e300)}) {
    ExpectLayersRefused(ParseLayers("smollm3", {{"no_rope_layer_interval", bad}}),
                        absl::StatusCode::kInvalidArgument,
                        "no_rope_layer_interval must be a whole number from 1 to 1048576");
  }
}

int32_t WindowOf(const char* type, const Json& others) {
  const auto config = ParseLayers(type, others);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? config->sliding_window : -1;
}

// By layer; 0: it is a full layer.
std::vector<int32_t> WindowsOf(const char* type, const Json& others) {
  const auto config = ParseLayers(type, others);
  EXPECT_TRUE(config.ok()) << config.status();
  std::vector<int32_t> windows;
  for (int32_t i = 0; config.ok() && i < kLayers; ++i) windows.push_back(config->layer(i).window);
  return windows;
}

// bad input: config.json | `sliding_window` 0, negative, huge | INVALID_ARGUMENT naming field and
//   limit
TEST(LayerKinds, MistralsWindowIsOfAllLayersUnlessItIsNull) {
  EXPECT_EQ(WindowOf("mistral", {{"sliding_window", nullptr}}), 0);
  EXPECT_EQ(WindowOf("mistral", {{"sliding_window", 1024}}), 1024);
  EXPECT_EQ(WindowOf("mistral", Json::object()), 4096) << "as transformers";
  EXPECT_THAT(WindowsOf("mistral", {{"sliding_window", 1024}}),
              ElementsAre(1024, 1024, 1024, 1024));
  EXPECT_THAT(WindowsOf("mistral", {{"sliding_window", nullptr}}), ElementsAre(0, 0, 0, 0));
  for (const Json& bad : {Json(0), Json(-1), Json("1024"), Json(1e9)}) {
    ExpectLayersRefused(ParseLayers("mistral", {{"sliding_window", bad}}),
                        absl::StatusCode::kInvalidArgument,
                        "sliding_window must be a whole number from 1 to 16777216");
  }
  ExpectLayersRefused(ParseLayers("llama", {{"sliding_window", 1024}}),
                      absl::StatusCode::kUnimplemented, "sliding_window");
}

// bad input: config.json | `layer_types` of another length, or with an unknown kind |
//   INVALID_ARGUMENT; UNIMPLEMENTED for the kind
TEST(LayerKinds, QwensWindowIsOfTheLayersThatAreListedOrFromOneOn) {
  Json layers = {"full_attention", "full_attention", "full_attention", "sliding_attention"};
  for (const char* type : {"qwen2", "qwen3"}) {
    EXPECT_EQ(WindowOf(type, {{"sliding_window", 1024}}), 0);
    EXPECT_EQ(WindowOf(type, {{"sliding_window", 1024}, {"use_sliding_window", false}}), 0);
    const Json used = {{"sliding_window", 1024}, {"use_sliding_window", true}};
    EXPECT_EQ(WindowOf(type, used), 0) << "from layer 28 on";
    Json from = used;
    from["max_window_layers"] = 3;
    EXPECT_EQ(WindowOf(type, from), 1024);
    EXPECT_THAT(WindowsOf(type, from), ElementsAre(0, 0, 0, 1024));
    from["max_window_layers"] = 1;
    EXPECT_THAT(WindowsOf(type, from), ElementsAre(0, 1024, 1024, 1024));
    from["max_window_layers"] = 4;
    EXPECT_EQ(WindowOf(type, from), 0);
    from["sliding_window"] = nullptr;
    from["max_window_layers"] = 0;
    EXPECT_EQ(WindowOf(type, from), 0);
    Json named = used;
    named["layer_types"] = layers;
    EXPECT_EQ(WindowOf(type, named), 1024) << "though max_window_layers is 28";
    EXPECT_THAT(WindowsOf(type, named), ElementsAre(0, 0, 0, 1024));
    named["layer_types"] = Json(4, "full_attention");
    named["max_window_layers"] = 0;
    EXPECT_EQ(WindowOf(type, named), 0);
    ExpectLayersRefused(ParseLayers(type, {{"layer_types", layers}}),
                        absl::StatusCode::kUnimplemented, "layer_types");
  }
  layers[0] = "linear_attention";
  ExpectLayersRefused(ParseLayers("qwen3", {{"layer_types", layers}}),
                      absl::StatusCode::kUnimplemented,
                      "layer_types 'linear_attention' is not supported");
  for (const Json& bad : {Json(3, "full_attention"), Json("full_attention"), Json::object()}) {
    ExpectLayersRefused(ParseLayers("qwen3", {{"layer_types", bad}}),
                        absl::StatusCode::kInvalidArgument,
                        "layer_types must be a list with one entry for each layer");
  }
}

TEST(LayerKinds, Qwen3MoesWindowIsOfAllLayersIfItIsAskedFor) {
  EXPECT_EQ(WindowOf("qwen3_moe", {{"sliding_window", 1024}}), 0);
  EXPECT_EQ(WindowOf("qwen3_moe", {{"use_sliding_window", true}}), 4096);
  EXPECT_EQ(
      WindowOf("qwen3_moe",
               {{"use_sliding_window", true}, {"sliding_window", 1024}, {"max_window_layers", 4}}),
      1024);
}

TEST(LayerKinds, SmolLM3sWindowIsOfLayersWithoutRope) {
  const Json used = {{"sliding_window", 1024}, {"use_sliding_window", true}};
  EXPECT_EQ(WindowOf("smollm3", used), 1024);
  EXPECT_EQ(WindowOf("smollm3", {{"sliding_window", 1024}}), 0);
  EXPECT_EQ(WindowOf("smollm3", {{"use_sliding_window", true}}), 0)
      << "it has no window of its own";
  Json everywhere = used;
  everywhere["no_rope_layers"] = Json(4, 1);
  EXPECT_EQ(WindowOf("smollm3", everywhere), 0) << "no layer is without RoPE";
  Json named = used;
  named["layer_types"] = Json(4, "full_attention");
  EXPECT_EQ(WindowOf("smollm3", named), 0);
  named["layer_types"][0] = "sliding_attention";
  EXPECT_EQ(WindowOf("smollm3", named), 1024) << "though this layer has RoPE";
  EXPECT_THAT(WindowsOf("smollm3", named), ElementsAre(1024, 0, 0, 0));
  EXPECT_THAT(RotationsOf("smollm3", named), ElementsAre(true, true, true, false));
  named["use_sliding_window"] = false;
  ExpectLayersRefused(ParseLayers("smollm3", named), absl::StatusCode::kUnimplemented,
                      "layer_types");
}

TEST(LayerKinds, AWindowAsLongAsTheContextIsNone) {
  const auto read = ParseLayers(
      "qwen2", {{"sliding_window", 100}, {"use_sliding_window", true}, {"max_window_layers", 2}});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ForContext(*read, 101), *read);
  EXPECT_THAT(read->full_layers(), ElementsAre(0, 1));
  for (const int32_t context : {100, 99, 1}) {
    const ModelConfig full = ForContext(*read, context);
    EXPECT_THAT(full.layers, IsEmpty());
    EXPECT_EQ(full.num_full_layers(), kLayers);
    EXPECT_EQ(full.sliding_window, 100) << "the model is the same";
  }
  const auto unrotated =
      ParseLayers("smollm3", {{"sliding_window", 100}, {"use_sliding_window", true}});
  EXPECT_FALSE(unrotated->IsFull(3));
  EXPECT_TRUE(ForContext(*unrotated, 100).IsFull(3));
  EXPECT_FALSE(ForContext(*unrotated, 100).layer(3).rotates);
}

}  // namespace
}  // namespace eta
