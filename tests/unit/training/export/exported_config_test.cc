// What config.json of a trained model says, as the server reads it.
#include "training/export/exported_config.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "training/export/model_card.h"

namespace eta::training {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

Json Original(const std::string& family) {
  return {{"model_type", family},
          {"vocab_size", 64},
          {"hidden_size", 256},
          {"intermediate_size", 64},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"rms_norm_eps", 1e-6},
          {"max_position_embeddings", 32768},
          {"head_dim", 64}};
}

TEST(ExportedConfig, OfAModelFromScratchComesBack) {
  ModelSpec spec = {.gate = GateKind::kSilu, .thresholds = ThresholdSource::kPredicted};
  spec.config.vocab_size = 100;
  spec.config.model_dim = 48;
  spec.config.ffn_dim = 96;
  spec.config.num_layers = 3;
  spec.config.num_query_heads = 6;
  spec.config.num_kv_heads = 2;
  spec.config.head_dim = 8;
  spec.config.norm_eps = 1e-5f;
  spec.config.rope_theta = 5e5f;
  spec.config.max_context = 512;
  spec.config.tie_word_embeddings = true;
  spec.config.block_size = 16;
  spec.config.bos_id = 1;
  spec.config.eos_ids = {2};
  const auto gated = ParseModelConfig(PretrainedConfigJson(spec, 5.0f)).value();
  EXPECT_TRUE(gated.has_predictor);
  EXPECT_EQ(gated.gate, Gate::kSilu);
  EXPECT_EQ(gated.beta, 5.0f);
  EXPECT_EQ(gated.norm_eps, 1e-5f);
  EXPECT_EQ(gated.head_dim, 8);
  EXPECT_EQ(gated.block_size, 16);
  EXPECT_EQ(gated.eos_ids, std::vector<int32_t>{2});
  EXPECT_EQ(ExpectedTensors(gated).count("model.layers.2.self_attn.tau_proj.weight"), 1u);

  spec.gate = GateKind::kNone;
  spec.thresholds = ThresholdSource::kNone;
  const auto dense = ParseModelConfig(PretrainedConfigJson(spec, 5.0f)).value();
  EXPECT_FALSE(dense.has_predictor);

  spec.gate = GateKind::kAdditive;
  spec.thresholds = ThresholdSource::kPredicted;
  EXPECT_TRUE(absl::IsUnimplemented(ParseModelConfig(PretrainedConfigJson(spec, 5.0f)).status()));

  spec.gate = GateKind::kNone;
  spec.thresholds = ThresholdSource::kNone;
  spec.attention = AttentionScheme::kNativeSparse;
  const absl::Status refused = ParseModelConfig(PretrainedConfigJson(spec, 5.0f)).status();
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("model_type 'nsa' is not supported"));
}

TEST(ExportedConfig, AnAdaptedModelKeepsWhatItsFamilyHas) {
  const ModelSpec spec = {.gate = GateKind::kSilu, .thresholds = ThresholdSource::kPredicted};
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "smollm3"}) {
    SCOPED_TRACE(family);
    Json original = Original(family);
    if (std::string(family) == "llama") original["attention_bias"] = true;
    if (std::string(family) == "mistral") original["sliding_window"] = 512;
    const auto before = ParseModelConfig(original.dump()).value();
    const auto after = ParseModelConfig(AdaptedConfigJson(original.dump(), spec, 5.0f)).value();
    EXPECT_TRUE(after.has_predictor);
    EXPECT_EQ(after.gate, Gate::kSilu);
    EXPECT_EQ(after.index, IndexKind::kOutlier);
    EXPECT_EQ(after.sink_blocks, 1);
    EXPECT_EQ(after.qkv_bias, before.qkv_bias);
    EXPECT_EQ(after.out_bias, before.out_bias);
    EXPECT_EQ(after.head_norms, before.head_norms);
    EXPECT_EQ(after.sliding_window, before.sliding_window);
    EXPECT_EQ(after.layers, before.layers);
    EXPECT_EQ(after.rope_theta, before.rope_theta);
    EXPECT_EQ(after.tie_word_embeddings, before.tie_word_embeddings);
    EXPECT_EQ(ExpectedTensors(after).size(), ExpectedTensors(before).size() + 8);
  }
}

TEST(ModelCard, SaysWhatWasMeasured) {
  HeldOutResult measured = {.all = {.full_perplexity = 12.0,
                                    .sparse_perplexity = 12.06,
                                    .head_density = 0.2,
                                    .union_density = 0.25},
                            .sparse = true,
                            .tokens = 3584,
                            .needles = 12,
                            .full_hits = 12,
                            .sparse_hits = 11};
  measured.texts = {measured.all};
  measured.texts[0].text = "wiki.txt";
  HeldOutResult dense = measured;
  dense.all.full_perplexity = dense.texts[0].full_perplexity = 11.98;
  ModelCard card = {.name = "adapted",
                    .original = "SmolLM2",
                    .method = "Adapted.",
                    .facts = {{"steps", "100"}},
                    .texts = {"train.jsonl"},
                    .context = 2048,
                    .prefill = 256,
                    .measured = measured,
                    .dense = dense,
                    .verdict = Judge({.target_union = 0.2}, measured, dense)};
  EXPECT_THAT(ModelCardText(card),
              AllOf(HasSubstr("# adapted\n"), HasSubstr("| adapted from | SmolLM2 |"),
                    HasSubstr("| wiki.txt | 11.980 | 12.000 | 12.060 | +0.50 % | 0.200 | 0.250 |"),
                    HasSubstr("12 by the original, 12 with full attention, 11 with sparse"),
                    HasSubstr("The bound on the block union is not kept."),
                    HasSubstr("held-out text that the sparsity weight was steered by")));

  card.tested = true;
  EXPECT_THAT(ModelCardText(card),
              AllOf(HasSubstr("of test text (--test): it was not trained on, nothing was steered"),
                    Not(HasSubstr("held-out"))));
  card.tested = false;
  card.original.clear();
  EXPECT_THAT(ModelCardText(card), HasSubstr("held-out text that was measured on during training"));
  card.measured.reset();
  EXPECT_THAT(ModelCardText(card), HasSubstr("Nothing was measured"));
  card.served = false;
  EXPECT_THAT(ModelCardText(card), HasSubstr("does not run this kind of attention"));
}

TEST(ModelCard, SaysWhatWasMeasuredOfAModelThatTheServerDoesNotRun) {
  HeldOutResult measured = {.all = {.full_perplexity = 14.0},
                            .as_trained = true,
                            .caches = CacheShares{.reads = 0.51, .holds = 2.062},
                            .needles = 12,
                            .full_hits = 9};
  measured.texts = {measured.all};
  measured.texts[0].text = "wiki.txt";
  const ModelCard card = {.name = "rival",
                          .method = "Trained.",
                          .texts = {"train.jsonl"},
                          .context = 4096,
                          .prefill = 512,
                          .served = false,
                          .measured = measured};
  EXPECT_THAT(ModelCardText(card),
              AllOf(HasSubstr("The server does not run this kind of attention."),
                    HasSubstr("| wiki.txt | 14.000 |\n| **all** | 14.000 |\n"),
                    HasSubstr("Needles found of 12: 9."), HasSubstr("reads 0.510"),
                    HasSubstr("hold 2.062"), Not(HasSubstr("union"))));
}

}  // namespace
}  // namespace eta::training
