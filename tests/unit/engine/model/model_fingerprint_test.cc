#include "engine/model/model_fingerprint.h"

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "gtest/gtest.h"
#include "tests/testing/base/temp_folder.h"

namespace eta {
namespace {

class ModelFingerprintTest : public testing::Test {
 protected:
  ModelFingerprintTest() {
    folder_.Write("config.json", "{}");
    folder_.Write("tokenizer.model", "pieces");
    WriteWeights("model.safetensors", "alpha");
  }

  void WriteWeights(const std::string& name, const std::string& values) const {
    const TensorToWrite tensor{
        DType::kUInt8, {static_cast<int64_t>(values.size())}, std::as_bytes(std::span(values))};
    const std::map<std::string, TensorToWrite> all = {{"tensor", tensor}};
    ASSERT_TRUE(WriteSafetensors(folder_.path() + "/" + name, {}, all).ok());
  }
  std::string Fingerprint(const ModelConfig& config = {}) const {
    const auto checkpoint = Checkpoint::Open(folder_.path());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    if (!checkpoint.ok()) return "";
    const auto fingerprint = ModelFingerprint(config, *checkpoint);
    EXPECT_TRUE(fingerprint.ok()) << fingerprint.status();
    return fingerprint.value_or("");
  }

  const TempFolder folder_;
};

TEST_F(ModelFingerprintTest, FollowsWeightsAndTokenizerButNotTheConfigsTextNorNamesOfFiles) {
  const std::string model = Fingerprint();
  EXPECT_EQ(model.size(), 64u);
  folder_.Write("config.json", "{ \"transformers_version\": \"4.44\" }");
  EXPECT_EQ(Fingerprint(), model) << "what is read of it is the same";
  std::filesystem::rename(folder_.path() + "/model.safetensors",
                          folder_.path() + "/shard.safetensors");
  folder_.Write("model.safetensors.index.json",
                R"({"weight_map": {"tensor": "shard.safetensors"}})");
  EXPECT_EQ(Fingerprint(), model);
  folder_.Write("tokenizer.model", "other pieces");
  EXPECT_NE(Fingerprint(), model);
  folder_.Write("tokenizer.model", "pieces");
  EXPECT_EQ(Fingerprint(), model);
  WriteWeights("shard.safetensors", "alphb");
  EXPECT_NE(Fingerprint(), model);
}

TEST_F(ModelFingerprintTest, FollowsTheIndexMetric) {
  const std::string model = Fingerprint();
  WriteWeights("index_metric.safetensors", "metric");
  const std::string with_metric = Fingerprint();
  EXPECT_NE(with_metric, model);
  WriteWeights("index_metric.safetensors", "netric");
  EXPECT_NE(Fingerprint(), with_metric);
}

TEST_F(ModelFingerprintTest, DefaultsOfTheGateAreNotInIt) {
  // So that profiles from before these fields existed still fit.
  ModelConfig config;
  config.gate = Gate::kSilu;
  config.has_predictor = true;
  config.SetAttentionDefaults();
  const std::string gated = Fingerprint(config);
  config.sink_blocks = 1;
  EXPECT_NE(Fingerprint(config), gated);
  config.sink_blocks = 0;
  EXPECT_EQ(Fingerprint(config), gated);
}

TEST_F(ModelFingerprintTest, LayersThatAreAllAlikeAreNotInIt) {
  ModelConfig config;
  config.num_layers = 2;
  const std::string alike = Fingerprint(config);
  config.layers.resize(2);
  EXPECT_EQ(Fingerprint(config), alike);
}

TEST_F(ModelFingerprintTest, FollowsEveryFieldOfTheConfig) {
  using Change = std::function<void(ModelConfig&)>;
  const std::vector<Change> changes = {
      [](ModelConfig&) {},
      [](ModelConfig& c) { c.vocab_size = 7; },
      [](ModelConfig& c) { c.model_dim = 7; },
      [](ModelConfig& c) { c.ffn_dim = 7; },
      [](ModelConfig& c) { c.num_layers = 7; },
      [](ModelConfig& c) { c.num_query_heads = 7; },
      [](ModelConfig& c) { c.num_kv_heads = 7; },
      [](ModelConfig& c) { c.head_dim = 7; },
      [](ModelConfig& c) { c.norm_eps = 1e-5f; },
      [](ModelConfig& c) { c.norm_eps = 1e-6f; },
      [](ModelConfig& c) { c.rope_theta = 500'000.0f; },
      [](ModelConfig& c) { c.rope_scaling.factor = 7; },
      [](ModelConfig& c) { c.rope_scaling.low_freq_factor = 7; },
      [](ModelConfig& c) { c.rope_scaling.high_freq_factor = 7; },
      [](ModelConfig& c) { c.rope_scaling.original_context = 7; },
      [](ModelConfig& c) { c.rope_scaling.type = RopeScalingType::kLinear; },
      [](ModelConfig& c) { c.rope_scaling.type = RopeScalingType::kDynamic; },
      [](ModelConfig& c) { c.rope_scaling.type = RopeScalingType::kYarn; },
      [](ModelConfig& c) { c.rope_scaling.ramp_begin = 7; },
      [](ModelConfig& c) { c.rope_scaling.ramp_end = 7; },
      [](ModelConfig& c) { c.rope_scaling.attention_factor = 7; },
      [](ModelConfig& c) { c.max_context = 7; },
      [](ModelConfig& c) { c.sliding_window = 7; },
      [](ModelConfig& c) { c.qkv_bias = true; },
      [](ModelConfig& c) { c.out_bias = true; },
      [](ModelConfig& c) { c.head_norms = true; },
      [](ModelConfig& c) { c.post_norms = true; },
      [](ModelConfig& c) { c.unit_norms = true; },
      [](ModelConfig& c) { c.activation = Activation::kGelu; },
      [](ModelConfig& c) { c.embedding_scale = 7; },
      [](ModelConfig& c) { c.query_scalar = 7; },
      [](ModelConfig& c) { c.local_rope_theta = 7; },
      [](ModelConfig& c) {
        c.num_layers = 2;
        c.layers = {{.rotates = false}, {}};
      },
      [](ModelConfig& c) {
        c.num_layers = 2;
        c.layers = {{}, {.rotates = false}};
      },
      [](ModelConfig& c) {
        c.num_layers = 2;
        c.layers = {{.window = 7}, {}};
      },
      [](ModelConfig& c) {
        c.num_layers = 2;
        c.layers = {{.window = 7}, {.window = 7}};
      },
      [](ModelConfig& c) { c.num_experts = 7; },
      [](ModelConfig& c) { c.num_experts = 8; },
      [](ModelConfig& c) {
        c.num_experts = 8;
        c.experts_per_token = 7;
      },
      [](ModelConfig& c) {
        c.num_experts = 8;
        c.expert_ffn_dim = 7;
      },
      [](ModelConfig& c) {
        c.num_experts = 8;
        c.normalise_experts = true;
      },
      [](ModelConfig& c) {
        c.num_experts = 8;
        c.expert_layers = {true, false};
      },
      [](ModelConfig& c) {
        c.num_experts = 8;
        c.expert_layers = {false, true};
      },
      [](ModelConfig& c) { c.tie_word_embeddings = true; },
      [](ModelConfig& c) { c.index = IndexKind::kOutlier; },
      [](ModelConfig& c) { c.sink_blocks = 7; },
      [](ModelConfig& c) { c.shared_reads = true; },
      [](ModelConfig& c) { c.temper_special = true; },
      [](ModelConfig& c) { c.has_predictor = true; },
      [](ModelConfig& c) { c.gate = Gate::kSilu; },
      [](ModelConfig& c) { c.beta = 2.0f; },
      [](ModelConfig& c) { c.block_size = 32; },
      [](ModelConfig& c) { c.bos_id = 7; },
      [](ModelConfig& c) { c.eos_ids = {7}; },
      [](ModelConfig& c) {
        c.eos_ids = {7, 8};
      },
      [](ModelConfig& c) { c.eos_ids = {78}; },
  };
  std::set<std::string> fingerprints;
  for (const Change& change : changes) {
    ModelConfig config;
    change(config);
    fingerprints.insert(Fingerprint(config));
  }
  EXPECT_EQ(fingerprints.size(), changes.size());
}

}  // namespace
}  // namespace eta
