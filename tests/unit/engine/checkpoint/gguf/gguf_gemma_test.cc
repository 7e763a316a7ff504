// Gemma 3 as a GGUF file: what the architecture leaves unsaid, four norms, and the 1 in each.
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "engine/checkpoint/gguf/gguf_config.h"
#include "engine/checkpoint/gguf/gguf_file.h"
#include "engine/checkpoint/piece_table.h"
#include "engine/model/model_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_gguf.h"

namespace eta {
namespace {

using eta::testing::TinyGguf;
using Json = nlohmann::json;

class GgufGemmaTest : public ::testing::Test {
 protected:
  absl::StatusOr<GgufFile> Open(const std::function<void(GgufWriter&)>& change = nullptr,
                                uint32_t num_layers = 7) const {
    TinyGguf tiny({.architecture = "gemma3", .tied = true, .num_layers = num_layers});
    if (change) change(tiny.file);
    return GgufFile::Open(folder_.Write("tiny.gguf", tiny.file.Serialize()));
  }
  ModelConfig Config(const std::function<void(GgufWriter&)>& change = nullptr,
                     uint32_t num_layers = 7) const {
    return ParseModelConfig(Open(change, num_layers).value().texts().config_json).value();
  }
  static std::vector<int32_t> Windows(const ModelConfig& config) {
    std::vector<int32_t> windows;
    for (int32_t i = 0; i < config.num_layers; ++i) windows.push_back(config.layer(i).window);
    return windows;
  }

  TempFolder folder_;
};

TEST_F(GgufGemmaTest, WhatNoKeySaysIsAsInLlamaCpp) {
  const ModelConfig config = Config();
  EXPECT_TRUE(config.post_norms && config.unit_norms && config.head_norms);
  EXPECT_EQ(config.activation, Activation::kGelu);
  EXPECT_EQ(config.embedding_scale, 8.0f);
  EXPECT_EQ(config.query_scalar, 32.0) << "the size of a head";
  EXPECT_EQ(config.local_rope_theta, 1e4f);
  EXPECT_EQ(config.max_context, 1024);
  EXPECT_THAT(Windows(config), ::testing::ElementsAre(40, 40, 40, 40, 40, 0, 40));
  EXPECT_TRUE(config.layer(0).local_rope);
  EXPECT_FALSE(config.layer(5).local_rope);
  EXPECT_EQ(Config(nullptr, 62).query_scalar, 16.0) << "the largest model's own";
  EXPECT_EQ(GgufQueryScalar(62, 5376, 32, 128), 168);
  EXPECT_EQ(GgufQueryScalar(34, 2560, 8, 256), 256);
}

TEST_F(GgufGemmaTest, KeysMaySayOtherwise) {
  const ModelConfig config = Config([](GgufWriter& file) {
    file.Set("gemma3.attention.sliding_window_pattern", uint32_t{3});
    file.Set("gemma3.rope.freq_base", 1e6f);
    file.Set("gemma3.rope.freq_base_swa", 5e3f);
    file.Set("gemma3.rope.scaling.type", "linear");
    file.Set("gemma3.rope.scaling.factor", 8.0f);
  });
  EXPECT_THAT(Windows(config), ::testing::ElementsAre(40, 40, 0, 40, 40, 0, 40));
  EXPECT_EQ(config.rope_theta, 1e6f);
  EXPECT_EQ(config.local_rope_theta, 5e3f);
  EXPECT_EQ(config.rope_scaling.factor, 8.0);
  EXPECT_EQ(config.max_context, 1024) << "the length behind the scaling";
  const ModelConfig listed = Config([](GgufWriter& file) {
    file.Set("gemma3.attention.sliding_window_pattern",
             std::vector<bool>{true, false, true, false, true, false, true});
  });
  EXPECT_THAT(Windows(listed), ::testing::ElementsAre(40, 0, 40, 0, 40, 0, 40));
  const ModelConfig none =
      Config([](GgufWriter& file) { file.Remove("gemma3.attention.sliding_window"); });
  EXPECT_EQ(none.num_full_layers(), 7);
  EXPECT_FALSE(none.layer(0).local_rope) << "all layers then turn as full ones";
}

TEST_F(GgufGemmaTest, NormsComeWithoutTheirOne) {
  const std::vector<float> stored = {1.5f, 0.75f, -0.5f, 3.0f};
  const auto file = Open([&stored](GgufWriter& writer) {
    std::memcpy(writer.At("blk.3.post_ffw_norm.weight").data.data(), stored.data(),
                stored.size() * sizeof(float));
  });
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string name = "model.layers.3.post_feedforward_layernorm.weight";
  std::vector<float> read(64);
  for (const auto& bytes : {file->Read(name).value(), file->ReadStored(name)->bytes}) {
    ASSERT_EQ(bytes.size(), read.size() * sizeof(float));
    std::memcpy(read.data(), bytes.data(), bytes.size());
    EXPECT_EQ(std::vector<float>(read.begin(), read.begin() + 5),
              (std::vector<float>{0.5f, -0.25f, -1.5f, 2.0f, 0.0f}));
  }
  const TinyGguf tiny({.architecture = "gemma3", .tied = true, .num_layers = 7});
  EXPECT_EQ(file->tensors().size(), tiny.tensors.size());
  for (const auto& entry : tiny.tensors) EXPECT_TRUE(file->tensors().contains(entry.first));
  const auto config = ParseModelConfig(file->texts().config_json).value();
  EXPECT_TRUE(ValidateTensors(config, file->tensors()).ok());
}

// Of whatever family: the list of special tokens makes it one.
TEST_F(GgufGemmaTest, TheUnknownPieceMayBeCalledAControlToken) {
  const auto with_unknown = [this](int32_t type) {
    const auto file = Open([type](GgufWriter& writer) {
      std::vector<int32_t> types = {type, 3, 3};
      types.resize(259, 6);
      types.resize(264, 1);
      writer.Set("tokenizer.ggml.token_type", types);
    });
    return ParsePieceTable(*file.value().texts().tokenizer_files.sentencepiece_model).value();
  };
  EXPECT_EQ(with_unknown(3).unk_id, 0);
  EXPECT_EQ(with_unknown(2).unk_id, 0);
}

// bad input: GGUF | Gemma 3: caps of logits; norms that are not F32; a base for windows in an
//   architecture that has none | UNIMPLEMENTED, key or tensor named
TEST_F(GgufGemmaTest, WhatIsNotComputedIsRefusedByName) {
  const auto refused = [this](const std::function<void(GgufWriter&)>& change,
                              const std::string& words) {
    EXPECT_THAT(Open(change).status(), FailsSaying(absl::StatusCode::kUnimplemented, words));
  };
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    const std::string key = std::string("gemma3.") + cap;
    refused([&key](GgufWriter& file) { file.Set(key, 30.0f); },
            "'" + key + "' other than 0 is not supported");
  }
  refused(
      [](GgufWriter& file) {
        auto& norm = file.At("output_norm.weight");
        norm.type = 1;  // F16
        norm.data.resize(norm.data.size() / 2);
      },
      "tensor of 'model.norm.weight' is not F32");
  TinyGguf llama;
  llama.file.Set("llama.rope.freq_base_swa", 1e4f);
  EXPECT_THAT(GgufFile::Open(folder_.Write("llama.gguf", llama.file.Serialize())).status(),
              FailsSaying(absl::StatusCode::kUnimplemented,
                          "'llama.rope.freq_base_swa' is not supported with this architecture"));
}

}  // namespace
}  // namespace eta
