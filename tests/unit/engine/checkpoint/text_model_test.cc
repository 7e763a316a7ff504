// The text model of a checkpoint that also sees.
#include "engine/checkpoint/text_model.h"

#include <map>
#include <span>
#include <string>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/base/temp_folder.h"

namespace eta {
namespace {

using Json = nlohmann::json;

Json TextOf(const Json& whole) {
  const auto text = TextModelConfig(whole.dump());
  EXPECT_TRUE(text.ok() && *text) << text.status();
  return text.ok() && *text ? Json::parse(**text) : Json();
}

TEST(TextModel, TakesWhatTheOuterObjectSaysOfBoth) {
  const Json text = TextOf({{"model_type", "gemma3"},
                            {"eos_token_id", {1, 106}},
                            {"torch_dtype", "bfloat16"},
                            {"architectures", {"Gemma3ForConditionalGeneration"}},
                            {"text_config", {{"hidden_size", 2560}, {"eos_token_id", nullptr}}},
                            {"vision_config", {{"hidden_size", 1152}}}});
  EXPECT_EQ(text["model_type"], "gemma3_text");
  EXPECT_EQ(text["architectures"], Json{"Gemma3ForCausalLM"});
  EXPECT_EQ(text["hidden_size"], 2560);
  EXPECT_EQ(text["torch_dtype"], "bfloat16");
  EXPECT_EQ(text["eos_token_id"], nullptr) << "its own word counts";
  EXPECT_FALSE(text.contains("vision_config"));
}

TEST(TextModel, OthersAreLeftAsTheyAre) {
  for (const char* config : {R"({"model_type":"gemma3_text"})", R"({"model_type":7})", "{}"}) {
    EXPECT_EQ(TextModelConfig(config).value(), std::nullopt) << config;
  }
}

// bad input: config.json | `text_config` of a model that also sees is missing, no object, or of
//   another type | INVALID_ARGUMENT, named
TEST(TextModel, AConfigWithoutATextModelIsRefused) {
  for (const Json& bad : {Json(nullptr), Json(3), Json::array()}) {
    EXPECT_THAT(
        TextModelConfig(Json({{"model_type", "gemma3"}, {"text_config", bad}}).dump()).status(),
        FailsSaying(absl::StatusCode::kInvalidArgument, "text_config must be an object"));
  }
  EXPECT_THAT(
      TextModelConfig(R"({"model_type":"gemma3","text_config":{"model_type":"llama"}})").status(),
      FailsSaying(absl::StatusCode::kInvalidArgument,
                  "text_config.model_type must be gemma3_text"));
}

TEST(TextModel, NamesAreTheTextModelsOwn) {
  const std::pair<const char*, const char*> names[] = {
      {"language_model.model.embed_tokens.weight", "model.embed_tokens.weight"},
      {"language_model.lm_head.weight", "lm_head.weight"},
      {"model.language_model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"},
      {"model.norm.weight", "model.norm.weight"},
      {"other", "other"}};
  for (const auto& [name, own] : names) EXPECT_EQ(TextModelName(name), own);
  for (const char* name : {"vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight",
                           "multi_modal_projector.mm_input_projection_weight",
                           "model.vision_tower.vision_model.post_layernorm.weight",
                           "model.multi_modal_projector.mm_soft_emb_norm.weight"}) {
    EXPECT_EQ(TextModelName(name), std::nullopt);
  }
}

class TextModelFolder : public ::testing::Test {
 protected:
  absl::StatusOr<Checkpoint> Open(const std::map<std::string, std::string>& values) const {
    std::map<std::string, TensorToWrite> tensors;
    for (const auto& [name, value] : values) {
      tensors[name] = {
          DType::kUInt8, {static_cast<int64_t>(value.size())}, std::as_bytes(std::span(value))};
    }
    EXPECT_TRUE(WriteSafetensors(folder_.path() + "/model.safetensors", {}, tensors).ok());
    folder_.Write("config.json",
                  R"({"model_type":"gemma3","text_config":{"hidden_size":8},"vision_config":{}})");
    return Checkpoint::Open(folder_.path());
  }

  const TempFolder folder_;
};

TEST_F(TextModelFolder, IsReadAsItsTextModel) {
  const auto checkpoint = Open({{"language_model.model.norm.weight", "norm"},
                                {"vision_tower.a", "seen"},
                                {"multi_modal_projector.b", "led"}});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(Json::parse(checkpoint->config_json())["model_type"], "gemma3_text");
  EXPECT_EQ(checkpoint->tensors().size(), 1u);
  EXPECT_EQ(checkpoint->left_out_tensors(), 2u);
  const auto read = checkpoint->Read("model.norm.weight").value();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(read.data()), read.size()), "norm");
  EXPECT_TRUE(absl::IsNotFound(checkpoint->Read("vision_tower.a").status()));
}

// bad input: model.safetensors | a tensor of the text model under both of its names |
//   INVALID_ARGUMENT, named
TEST_F(TextModelFolder, ATensorUnderTwoNamesIsRefused) {
  EXPECT_THAT(
      Open({{"language_model.model.norm.weight", "one"}, {"model.norm.weight", "two"}}).status(),
      FailsSaying(absl::StatusCode::kInvalidArgument,
                  "tensor 'model.norm.weight' is there under two names"));
}

}  // namespace
}  // namespace eta
