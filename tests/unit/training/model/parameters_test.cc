#include "training/model/parameters.h"

#include <cmath>
#include <map>
#include <string>

#include "engine/checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/training/toy_model.h"
#include "training/cpu/cpu_backend.h"

namespace eta::training {
namespace {

using ::testing::Each;
using testing::ToySpec;

TEST(ParameterLayout, HasTheTensorsOfTheCheckpoint) {
  for (const bool tied : {false, true}) {
    for (const bool more : {false, true}) {
      const ModelSpec spec = ToySpec({.biases = more, .head_norms = more, .tied = tied});
      std::map<std::string, std::vector<int64_t>> placed;
      const ParameterLayout layout(spec, TrainedPart::kAll);
      for (const Parameter& p : layout.parameters()) placed[p.name] = p.shape;
      EXPECT_EQ(placed, ExpectedTensors(ConfigOf(spec, 5.0f)));
    }
  }
}

TEST(ParameterLayout, StacksWhatOneProductReads) {
  const ParameterLayout layout(ToySpec({.biases = true}), TrainedPart::kAll);
  const auto expect_behind = [&](const std::string& first, const std::string& second) {
    const Parameter* a = layout.Find("model.layers.1." + first);
    const Parameter* b = layout.Find("model.layers.1." + second);
    ASSERT_NE(a, nullptr);
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(a->offset + a->count, b->offset) << second;
  };
  expect_behind("self_attn.q_proj.weight", "self_attn.k_proj.weight");
  expect_behind("self_attn.k_proj.weight", "self_attn.v_proj.weight");
  expect_behind("self_attn.q_proj.bias", "self_attn.k_proj.bias");
  expect_behind("mlp.gate_proj.weight", "mlp.up_proj.weight");
  EXPECT_EQ(layout.trained_count(), layout.count());
}

// The order that its readers count on: native_sparse_attention.cc.
TEST(ParameterLayout, StacksTheProjectionsOfAllBranches) {
  const ModelSpec spec = ToySpec({.attention = AttentionScheme::kNativeSparse});
  const ParameterLayout layout(spec, TrainedPart::kAll);
  const Parameter* first = layout.Find("model.layers.1.self_attn.q_proj.weight");
  ASSERT_NE(first, nullptr);
  int64_t end = first->offset + first->count;
  for (const char* name :
       {"k_selection", "k_window", "v_selection", "v_window", "k_compression", "v_compression"}) {
    const Parameter* next =
        layout.Find("model.layers.1.self_attn." + std::string(name) + "_proj.weight");
    ASSERT_NE(next, nullptr) << name;
    EXPECT_EQ(next->offset, end) << name;
    end = next->offset + next->count;
  }
  EXPECT_EQ(end - first->offset, spec.qkv_dim() * spec.config.model_dim);
  EXPECT_EQ(layout.Find("model.layers.1.self_attn.k_proj.weight"), nullptr);
  EXPECT_EQ(layout.Find("model.layers.1.self_attn.k_compressor.gate_up_proj.weight")->shape,
            (std::vector<int64_t>{12, 32 * 6}));
  EXPECT_EQ(layout.Find("model.layers.1.self_attn.branch_gate_proj.bias")->count, 12);
}

TEST(ParameterLayout, TrainedOnesComeFirst) {
  const ParameterLayout layout(ToySpec(), TrainedPart::kPredictor);
  for (const Parameter& p : layout.parameters()) {
    const bool predictor = p.name.find("tau_proj") != std::string::npos;
    EXPECT_EQ(p.trained, predictor) << p.name;
    EXPECT_EQ(p.offset < layout.trained_count(), predictor) << p.name;
  }
  EXPECT_EQ(ParameterLayout(ToySpec(), TrainedPart::kNothing).trained_count(), 0);
}

TEST(ParameterLayout, AStaticThresholdIsABiasAlone) {
  const ParameterLayout layout(ToySpec({.thresholds = ThresholdSource::kStatic}),
                               TrainedPart::kAll);
  EXPECT_EQ(layout.Find("model.layers.0.self_attn.tau_proj.weight"), nullptr);
  EXPECT_NE(layout.Find("model.layers.0.self_attn.tau_proj.bias"), nullptr);
}

class ParametersTest : public ::testing::Test {
 protected:
  std::unique_ptr<Parameters> Make(const ModelSpec& spec, TrainedPart trained = TrainedPart::kAll) {
    auto parameters = Parameters::Create(spec, trained, *backend_);
    EXPECT_TRUE(parameters.ok()) << parameters.status();
    return *std::move(parameters);
  }

  std::unique_ptr<TrainingBackend> backend_ = cpu::MakeBackend(1);
};

TEST_F(ParametersTest, StartDenseAndByTheSeed) {
  const auto a = Make(ToySpec());
  const auto b = Make(ToySpec({.biases = true}), TrainedPart::kPredictor);
  ASSERT_TRUE(a->Initialise({.seed = 7}).ok());
  ASSERT_TRUE(b->Initialise({.seed = 7}).ok());
  const auto q = a->Read("model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(*q, *b->Read("model.layers.0.self_attn.q_proj.weight"));
  double squares = 0.0;
  for (const float value : *q) squares += static_cast<double>(value) * value;
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(q->size())), 0.02, 0.002);
  EXPECT_THAT(*a->Read("model.layers.1.self_attn.tau_proj.bias"), Each(-8.0f));
  EXPECT_THAT(*a->Read("model.layers.1.self_attn.tau_proj.weight"), Each(0.0f));
  EXPECT_THAT(*a->Read("model.norm.weight"), Each(1.0f));
  ASSERT_TRUE(a->Initialise({.seed = 8}).ok());
  EXPECT_NE(*q, *a->Read("model.layers.0.self_attn.q_proj.weight"));
}

TEST_F(ParametersTest, CompressorsKeepTheSizeOfWhatTheyRead) {
  const auto parameters = Make(ToySpec({.attention = AttentionScheme::kNativeSparse}));
  ASSERT_TRUE(parameters->Initialise({.seed = 7}).ok());
  const auto map = parameters->Read("model.layers.0.self_attn.v_compressor.gate_up_proj.weight");
  double squares = 0.0;
  for (const float value : *map) squares += static_cast<double>(value) * value;
  EXPECT_NEAR(squares / static_cast<double>(map->size()), 1.0 / 192.0, 2e-4);
  EXPECT_THAT(*parameters->Read("model.layers.0.self_attn.v_compressor.gate_up_proj.bias"),
              Each(0.0f));
}

TEST_F(ParametersTest, AreThoseOfTheCheckpoint) {
  const eta::testing::TinyModel tiny({.dtype = DType::kBFloat16});
  const auto checkpoint = Checkpoint::Open(tiny.path()).value();
  const auto config = ParseModelConfig(checkpoint.config_json()).value();
  const auto parameters = Make(SpecOf(config));
  ASSERT_TRUE(parameters->Load(checkpoint, {}).ok());
  for (const auto& [name, info] : checkpoint.tensors()) {
    const auto bytes = checkpoint.Read(name);
    const auto values = parameters->Read(name).value();
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], LoadElement(info.dtype, bytes->data(), static_cast<int64_t>(i))) << name;
    }
  }
}

TEST_F(ParametersTest, PredictorsThatACheckpointLacksStartDense) {
  const eta::testing::TinyModel tiny({.has_predictor = false});
  const auto checkpoint = Checkpoint::Open(tiny.path()).value();
  ModelSpec spec = SpecOf(*ParseModelConfig(checkpoint.config_json()));
  EXPECT_EQ(spec.gate, GateKind::kNone);
  spec.gate = GateKind::kSilu;
  spec.thresholds = ThresholdSource::kPredicted;
  const auto parameters = Make(spec);
  ASSERT_TRUE(parameters->Load(checkpoint, {.threshold_bias = -3.0f}).ok());
  EXPECT_THAT(*parameters->Read("model.layers.0.self_attn.tau_proj.bias"), Each(-3.0f));
}

TEST_F(ParametersTest, RefusesACheckpointOfAnotherShape) {
  const eta::testing::TinyModel tiny;
  const auto checkpoint = Checkpoint::Open(tiny.path()).value();
  ModelSpec spec = SpecOf(*ParseModelConfig(checkpoint.config_json()));
  spec.config.ffn_dim += 1;
  EXPECT_EQ(Make(spec)->Load(checkpoint, {}).code(), absl::StatusCode::kFailedPrecondition);
  spec.config.ffn_dim -= 1;
  spec.config.num_layers += 1;
  const absl::Status missing = Make(spec)->Load(checkpoint, {});
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(missing.message().find("is missing"), std::string::npos) << missing;
}

TEST_F(ParametersTest, RefusesNan) {
  const eta::testing::TinyModel tiny({.tied = false, .nan_embedding = 3});
  const auto checkpoint = Checkpoint::Open(tiny.path()).value();
  const auto parameters = Make(SpecOf(*ParseModelConfig(checkpoint.config_json())));
  EXPECT_EQ(parameters->Load(checkpoint, {}).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ParametersTest, AreReadAndWrittenByName) {
  const auto parameters = Make(ToySpec(), TrainedPart::kPredictor);
  ASSERT_TRUE(parameters->Initialise({}).ok());
  const std::string name = "model.layers.0.self_attn.tau_proj.bias";
  ASSERT_TRUE(parameters->Write(name, std::vector<float>{1, 2, 3, 4}).ok());
  EXPECT_EQ(*parameters->Read(name), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_TRUE(parameters->ReadGradient(name).ok());
  EXPECT_EQ(parameters->Write(name, std::vector<float>{1}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(parameters->Read("model.layers.9.mlp").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(parameters->ReadGradient("model.norm.weight").status().code(),
            absl::StatusCode::kNotFound);
}

// bad input: eta-train | a model with experts | UNIMPLEMENTED, num_experts named
TEST_F(ParametersTest, ExpertsAreNotTrained) {
  const eta::testing::TinyModel tiny({.model_type = "qwen3_moe", .num_experts = 4});
  const auto checkpoint = Checkpoint::Open(tiny.path()).value();
  const ModelSpec spec = SpecOf(ParseModelConfig(checkpoint.config_json()).value());
  const absl::Status refused = ValidateSpec(spec);
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_EQ(refused.message(), "model: num_experts 4: experts are not trained");
}

// bad input: eta-train | a model with norms behind its layers' parts, or with GELU | UNIMPLEMENTED,
//   named
TEST_F(ParametersTest, WhatGemmaAddsIsNotTrained) {
  const eta::testing::TinyModel tiny({.model_type = "gemma3_text"});
  const auto checkpoint = Checkpoint::Open(tiny.path()).value();
  const ModelSpec spec = SpecOf(ParseModelConfig(checkpoint.config_json()).value());
  const absl::Status refused = ValidateSpec(spec);
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_EQ(refused.message(),
            "model: norms behind attention and feed-forward, and gates with GELU, are not trained");
}

// bad input: eta-train | a model with a window shorter than the sequences | UNIMPLEMENTED,
//   sliding_window named
TEST_F(ParametersTest, WindowsAreNotTrained) {
  const eta::testing::TinyModel tiny({.model_type = "mistral", .sliding_window = 100});
  const auto checkpoint = Checkpoint::Open(tiny.path()).value();
  const ModelConfig config = ParseModelConfig(checkpoint.config_json()).value();
  EXPECT_TRUE(ValidateSpec(SpecOf(ForContext(config, 100))).ok());
  const absl::Status refused = ValidateSpec(SpecOf(ForContext(config, 101)));
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_EQ(refused.message(),
            "model: sliding_window 100: windows shorter than a sequence are not trained");
}

TEST_F(ParametersTest, NativeSparseAttentionHasNothingOfOtherKinds) {
  const ModelSpec sparse = ToySpec({.attention = AttentionScheme::kNativeSparse});
  ASSERT_TRUE(ValidateSpec(sparse).ok());
  std::vector<ModelSpec> others(5, sparse);
  others[0].gate = GateKind::kSilu;
  others[0].thresholds = ThresholdSource::kPredicted;
  others[1].config.qkv_bias = true;
  others[2].config.out_bias = true;
  others[3].config.head_norms = true;
  others[4].config.layers = {{}, {.rotates = false}};
  for (const ModelSpec& spec : others) {
    EXPECT_TRUE(absl::IsInvalidArgument(ValidateSpec(spec)));
  }
}

TEST_F(ParametersTest, AGateNeedsThresholds) {
  ModelSpec spec = ToySpec();
  spec.thresholds = ThresholdSource::kNone;
  EXPECT_EQ(Parameters::Create(spec, TrainedPart::kAll, *backend_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eta::training
