// The model in training against the engine's, whatever the family; and what it keeps to.

#include "training/model/training_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>

#include "calibration/evaluation/runtime/runner.h"
#include "engine/checkpoint/checkpoint.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/training/toy_model.h"
#include "training/cpu/cpu_backend.h"
#include "training/reference/reference_backend.h"

namespace eta::training {
namespace {

using testing::MakeToy;
using testing::ToyModel;
using testing::ToySpec;

constexpr int32_t kCompared = 100;  // tokens of a sequence

std::vector<int32_t> SomeTokens(int32_t count, int32_t vocab) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back((i * 7919 + i * i * 31 + 5) % vocab);
  return tokens;
}

// Of every row, the log-probability of the next token, by the engine with full attention.
std::vector<float> EngineLogprobs(const Checkpoint& checkpoint, const ModelConfig& config,
                                  std::span<const int32_t> tokens,
                                  std::span<const int32_t> targets) {
  std::vector<float> logprobs(tokens.size());
  const auto backend = eta::MakeBackend({.name = "reference"});
  EXPECT_TRUE(backend.ok());
  KvGeometry geometry;
  geometry.num_kv_heads = config.num_kv_heads;
  geometry.head_dim = config.head_dim;
  geometry.block_size = config.block_size;
  geometry.dtype = DType::kFloat32;
  geometry.index = config.index;
  if (config.index == IndexKind::kOutlier) geometry.index_dtype = DType::kInt8;
  const auto runner = SequenceRunner::Create(
      checkpoint, **backend,
      {.geometry = geometry, .max_context = 512, .max_rows = static_cast<int32_t>(tokens.size())});
  EXPECT_TRUE(runner.ok()) << runner.status();
  if (!runner.ok()) return logprobs;
  EXPECT_TRUE((*runner)->Begin({.rope_theta = config.rope_theta}).ok());
  const absl::Status ran = (*runner)->Run(
      {.tokens = tokens, .kind = RowKind::kPrefill, .targets = targets, .logprobs = logprobs});
  EXPECT_TRUE(ran.ok()) << ran;
  return logprobs;
}

// The same by the model in training.
std::vector<float> TrainingLogprobs(const Checkpoint& checkpoint, const ModelConfig& config,
                                    TrainingBackend& backend, std::span<const int32_t> tokens,
                                    std::span<const int32_t> targets) {
  const ModelSpec spec = SpecOf(config);
  auto parameters = Parameters::Create(spec, TrainedPart::kNothing, backend);
  EXPECT_TRUE(parameters.ok()) << parameters.status();
  EXPECT_TRUE((*parameters)->Load(checkpoint, {}).ok());
  const auto length = static_cast<int32_t>(tokens.size());
  auto model = TrainingModel::Create(spec, **parameters,
                                     {.sequences = 1, .length = length, .backward = false});
  EXPECT_TRUE(model.ok()) << model.status();
  SequenceBatch batch;
  batch.sequences = 1;
  batch.length = length;
  batch.tokens = tokens;
  StepSettings settings;
  settings.beta = config.beta;
  const auto hidden = (*model)->Hidden(batch, settings);
  EXPECT_TRUE(hidden.ok()) << hidden.status();
  const auto losses = backend.Allocate(tokens.size() * sizeof(float));
  const std::vector<float> weights(tokens.size(), 1.0f);
  HeadLossParams head{};
  head.hidden = *hidden;
  head.head = (*model)->head();
  head.targets = targets;
  head.ce_weights = weights;
  head.cross_entropy = (*losses)->as<float>();
  backend.HeadLoss(head);
  std::vector<float> logprobs(tokens.size());
  backend.Download(logprobs.data(), (*losses)->data(), (*losses)->size());
  EXPECT_TRUE(backend.Finish().ok());
  for (float& value : logprobs) value = -value;
  return logprobs;
}

void ExpectTheEngines(const std::string& folder, TrainingBackend& backend, double tolerance) {
  const auto checkpoint = Checkpoint::Open(folder).value();
  const auto config = ForContext(ParseModelConfig(checkpoint.config_json()).value(), kCompared);
  const std::vector<int32_t> all =
      SomeTokens(std::min(kCompared, config.max_context) + 1, config.vocab_size);
  const std::span<const int32_t> tokens(all.data(), all.size() - 1);
  const std::span<const int32_t> targets(all.data() + 1, all.size() - 1);
  const std::vector<float> expected = EngineLogprobs(checkpoint, config, tokens, targets);
  const std::vector<float> got = TrainingLogprobs(checkpoint, config, backend, tokens, targets);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance) << folder << ", row " << i;
  }
}

TEST(TrainingModel, SaysWhatTheEngineSays) {
  const auto cpu = cpu::MakeBackend(2);
  const auto reference = reference::MakeBackend();
  for (const char* type : {"", "llama", "mistral", "qwen2", "qwen3", "smollm3"}) {
    const eta::testing::TinyModel tiny(
        {.num_layers = 4,
         .model_type = type,
         .attention_bias = std::string(type) == "llama" || std::string(type) == "qwen3"});
    ExpectTheEngines(tiny.path(), *cpu, 2e-4);
    ExpectTheEngines(tiny.path(), *reference, 2e-4);
  }
}

// Families as transformers saved them: scaled RoPE, norms of heads, biases, heads of 64 to 128.
TEST(TrainingModel, SaysWhatTheEngineSaysOfEveryFamily) {
  const auto cpu = cpu::MakeBackend(2);
  int folders = 0;
  for (const char* kind : {"llama", "families"}) {
    const std::filesystem::path root = std::string(ETA_SOURCE_DIR "/tests/golden/") + kind;
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
      if (!entry.is_directory() || !std::filesystem::exists(entry.path() / "config.json")) continue;
      const auto checkpoint = Checkpoint::Open(entry.path()).value();
      const auto config = ParseModelConfig(checkpoint.config_json());
      ASSERT_TRUE(config.ok()) << entry.path();
      // A tied model whose head is another is not one that training can keep.
      if (config->tie_word_embeddings && checkpoint.tensors().contains("lm_head.weight")) continue;
      if (config->num_experts > 0) continue;
      const ModelConfig seen = ForContext(*config, kCompared);
      if (seen.num_full_layers() < seen.num_layers) continue;  // training has no windows
      ExpectTheEngines(entry.path(), *cpu, 2e-4);
      ++folders;
    }
  }
  EXPECT_GE(folders, 5);
}

TEST(TrainingModel, SaysWhatTheEngineSaysOfTheEmbeddedModel) {
  const auto cpu = cpu::MakeBackend(2);
  ExpectTheEngines(ETA_SOURCE_DIR "/models/eta-27m", *cpu, 1e-3);
}

// Gradients of a model after one batch, by parameter.
std::vector<std::vector<float>> Gradients(ToyModel& toy, const SequenceBatch& batch,
                                          const StepSettings& settings) {
  toy.parameters->ZeroGradients();
  const auto ran = toy.model->Run(batch, settings, nullptr, true);
  EXPECT_TRUE(ran.ok()) << ran.status();
  std::vector<std::vector<float>> gradients;
  for (const Parameter& p : toy.parameters->layout().parameters()) {
    if (p.trained) gradients.push_back(*toy.parameters->ReadGradient(p.name));
  }
  return gradients;
}

const StepSettings kSettings = {
    .beta = 2.0f, .regulariser = {.weight = 0.3, .block_share = 0.5}, .sequences_in_step = 2};

void ExpectThatRecomputingChangesNoBit(const ModelSpec& spec, int32_t length) {
  const auto cpu = cpu::MakeBackend(2);
  testing::PhraseSource source(spec.config.vocab_size, 2, length);
  MicroBatch batch;
  ASSERT_TRUE(source.Next(batch).ok());
  ToyModel kept = MakeToy(spec, *cpu, {.sequences = 2, .length = length, .recompute = false});
  ToyModel recomputed = MakeToy(spec, *cpu, {.sequences = 2, .length = length});
  ToyModel roomy = MakeToy(spec, *cpu, {.sequences = 3, .length = length + 30});
  const auto expected = Gradients(kept, batch.view(), kSettings);
  EXPECT_EQ(Gradients(recomputed, batch.view(), kSettings), expected);
  EXPECT_EQ(Gradients(roomy, batch.view(), kSettings), expected);
  EXPECT_EQ(Gradients(roomy, batch.view(), kSettings), expected);
}

TEST(TrainingModel, RecomputingChangesNoBit) {
  ExpectThatRecomputingChangesNoBit(
      ToySpec({.biases = true, .head_norms = true, .unrotated = true, .num_layers = 3}), 70);
}

// 20 tokens fill no window: there are no compressed keys.
TEST(TrainingModel, RecomputingChangesNoBitOfNativeSparseAttention) {
  const ModelSpec spec = ToySpec({.attention = AttentionScheme::kNativeSparse, .num_layers = 3});
  ExpectThatRecomputingChangesNoBit(spec, 150);
  ExpectThatRecomputingChangesNoBit(spec, 20);
}

// So long that blocks are left out.
TEST(TrainingModel, NativeSparseAttentionIsTheReferences) {
  constexpr int32_t kTokens = 64 * (kSelectedBlocks + 3);
  const ModelSpec spec =
      ToySpec({.attention = AttentionScheme::kNativeSparse, .num_layers = 1, .head_dim = 8});
  testing::PhraseSource source(spec.config.vocab_size, 1, kTokens);
  MicroBatch batch;
  ASSERT_TRUE(source.Next(batch).ok());
  const auto loss = [&](TrainingBackend& backend) {
    ToyModel toy = MakeToy(spec, backend, {.length = kTokens, .backward = false},
                           TrainedPart::kNothing, {.seed = 3, .deviation = 0.2});
    return toy.model->Run(batch.view(), {}, nullptr, false).value();
  };
  const auto cpu = cpu::MakeBackend(2);
  const auto reference = reference::MakeBackend();
  const BatchLoss got = loss(*cpu);
  const BatchLoss expected = loss(*reference);
  EXPECT_NEAR(got.cross_entropy / expected.cross_entropy, 1.0, 1e-4);
  EXPECT_GT(got.hits, 0);
  EXPECT_NEAR(static_cast<double>(got.hits), static_cast<double>(expected.hits), 5.0);
}

// Windows, their blocks and their importance tell no row of what comes after it.
TEST(TrainingModel, NativeSparseAttentionSeesNoLaterToken) {
  constexpr int32_t kTokens = 200;
  constexpr int32_t kChanged = 100;
  const auto cpu = cpu::MakeBackend(2);
  const ModelSpec spec = ToySpec({.attention = AttentionScheme::kNativeSparse});
  ToyModel toy = MakeToy(spec, *cpu, {.length = kTokens, .backward = false}, TrainedPart::kNothing,
                         {.seed = 3, .deviation = 0.2});
  std::vector<int32_t> tokens = SomeTokens(kTokens, spec.config.vocab_size);
  const auto row = [&](int32_t t) {
    const Tensor hidden = toy.model->Hidden({1, kTokens, tokens, {}, {}, {}}, {}).value();
    std::vector<float> values(static_cast<size_t>(hidden.cols));
    cpu->Download(values.data(), hidden.row(t), values.size() * sizeof(float));
    return values;
  };
  const std::vector<float> before = row(kChanged - 1);
  const std::vector<float> at = row(kChanged);
  tokens[kChanged] = (tokens[kChanged] + 1) % spec.config.vocab_size;
  EXPECT_EQ(row(kChanged - 1), before);
  EXPECT_NE(row(kChanged), at);
}

TEST(TrainingModel, FrozenPartsChangeNoGradientOfTheOthers) {
  const auto cpu = cpu::MakeBackend(2);
  const ModelSpec spec = ToySpec();
  testing::PhraseSource source(spec.config.vocab_size, 2, 70);
  MicroBatch batch;
  ASSERT_TRUE(source.Next(batch).ok());
  ToyModel all = MakeToy(spec, *cpu, {.sequences = 2, .length = 70});
  ToyModel part = MakeToy(spec, *cpu, {.sequences = 2, .length = 70}, TrainedPart::kPredictor);
  Gradients(all, batch.view(), kSettings);
  Gradients(part, batch.view(), kSettings);
  for (const Parameter& p : part.parameters->layout().parameters()) {
    if (!p.trained) continue;
    EXPECT_EQ(*part.parameters->ReadGradient(p.name), *all.parameters->ReadGradient(p.name))
        << p.name;
  }
}

TEST(TrainingModel, DivergesNotFromItself) {
  const auto cpu = cpu::MakeBackend(2);
  const ModelSpec spec = ToySpec();
  testing::PhraseSource source(spec.config.vocab_size, 2, 20);
  MicroBatch batch;
  ASSERT_TRUE(source.Next(batch).ok());
  ToyModel student = MakeToy(spec, *cpu, {.sequences = 2, .length = 20});
  ToyModel teacher =
      MakeToy(spec, *cpu, {.sequences = 2, .length = 20, .backward = false}, TrainedPart::kNothing);
  const auto ran = student.model->Run(batch.view(), {}, teacher.model.get(), false).value();
  EXPECT_NEAR(ran.divergence, 0.0, 1e-5);
  EXPECT_EQ(ran.rows, 40);
}

// A predictor that admits everything is nearly a dense model, and its densities say so.
TEST(TrainingModel, StartsDense) {
  const auto cpu = cpu::MakeBackend(2);
  ModelSpec spec = ToySpec();
  testing::PhraseSource source(spec.config.vocab_size, 2, 130);
  MicroBatch batch;
  ASSERT_TRUE(source.Next(batch).ok());
  ToyModel gated = MakeToy(spec, *cpu, {.sequences = 2, .length = 130, .backward = false});
  StepSettings settings = kSettings;
  settings.beta = 1.0f;
  const auto with_gate = gated.model->Run(batch.view(), settings, nullptr, false).value();
  EXPECT_GT(with_gate.MeanGateDensity(), 0.99);
  EXPECT_LE(with_gate.MeanGateDensity(), 1.0);
  EXPECT_GT(with_gate.MeanBlockDensity(), 0.99);
  EXPECT_EQ(with_gate.gate_density.size(), 8u);
  EXPECT_EQ(with_gate.block_density.size(), 4u);
  spec.gate = GateKind::kNone;
  spec.thresholds = ThresholdSource::kNone;
  ToyModel plain = MakeToy(spec, *cpu, {.sequences = 2, .length = 130, .backward = false});
  const auto without = plain.model->Run(batch.view(), settings, nullptr, false).value();
  EXPECT_NEAR(with_gate.cross_entropy / without.cross_entropy, 1.0, 1e-3);
  EXPECT_TRUE(std::isnan(without.MeanGateDensity()));
}

TEST(TrainingModel, RefusesBatchesThatDoNotFit) {
  const auto cpu = cpu::MakeBackend(1);
  ToyModel toy = MakeToy(ToySpec(), *cpu, {.sequences = 1, .length = 8, .backward = false});
  std::vector<int32_t> tokens(8, 1);
  const std::vector<int32_t> targets(8, 1);
  const auto run = [&](int32_t sequences, int32_t length) {
    return toy.model->Run({sequences, length, tokens, targets, {}, {}}, {}, nullptr, false)
        .status()
        .code();
  };
  EXPECT_EQ(run(1, 8), absl::StatusCode::kOk);
  EXPECT_EQ(run(2, 4), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(run(1, 9), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(run(1, 7), absl::StatusCode::kInvalidArgument);
  tokens[5] = 17;
  EXPECT_EQ(run(1, 8), absl::StatusCode::kInvalidArgument);
  tokens[5] = 1;
  EXPECT_EQ(toy.model->Run({1, 8, tokens, targets, {}, {}}, {}, nullptr, true).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eta::training
