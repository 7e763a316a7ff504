// Times training steps of a whole model with random weights on a GPU: tokens per second of forward,
// backward and AdamW, gated and dense. The text is made up and can be learnt: the loss must fall.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "training/backend.h"
#include "training/model/parameters.h"
#include "training/model/training_model.h"
#include "training/trainer/trainer.h"

namespace eta::training {
namespace {

struct Options {
  std::string backend = "cuda";
  std::string model = "eta-27m";
  int32_t sequences = 16;
  int32_t length = 4096;
  int32_t micro_batches = 1;
  int32_t steps = 12;
  int32_t warm_up = 3;
  double block_share = 0.5;
  bool dense = false;
  bool teacher = false;
  bool keep = false;
};

// Words of one order: token t is followed by one of two tokens.
class MadeUpText final : public BatchSource {
 public:
  MadeUpText(int32_t sequences, int32_t length, int32_t vocab)
      : sequences_(sequences), length_(length), vocab_(vocab) {}

  absl::Status Next(MicroBatch& batch) override {
    batch.sequences = sequences_;
    batch.length = length_;
    batch.tokens.clear();
    batch.targets.clear();
    for (int32_t b = 0; b < sequences_; ++b) {
      auto token = static_cast<int64_t>(random_() % static_cast<uint64_t>(vocab_));
      for (int32_t t = 0; t < length_; ++t) {
        batch.tokens.push_back(static_cast<int32_t>(token));
        token = (token * 5 + 1 + static_cast<int64_t>(random_() % 2) * 17) % std::min(vocab_, 1024);
        batch.targets.push_back(static_cast<int32_t>(token));
      }
    }
    batch.ce_weights.clear();
    batch.kl_weights.clear();
    return absl::OkStatus();
  }

 private:
  int32_t sequences_;
  int32_t length_;
  int32_t vocab_;
  std::mt19937_64 random_{9};
};

ModelConfig ConfigOf(const std::string& name) {
  ModelConfig config;
  config.head_dim = 64;
  config.norm_eps = 1e-5f;
  config.tie_word_embeddings = true;
  config.max_context = 16384;
  if (name == "smollm2-135m") {
    config.vocab_size = 49152;
    config.model_dim = 576;
    config.ffn_dim = 1536;
    config.num_layers = 30;
    config.num_query_heads = 9;
    config.num_kv_heads = 3;
    config.rope_theta = 100000.0f;
  } else {
    config.vocab_size = 8192;
    config.model_dim = 512;
    config.ffn_dim = 1408;
    config.num_layers = 8;
    config.num_query_heads = 8;
    config.num_kv_heads = 2;
    config.rope_theta = 500000.0f;
  }
  return config;
}

absl::Status Run(const Options& options) {
  auto backends = MakeTrainingBackends({.name = options.backend});
  if (!backends.ok()) return backends.status();
  TrainingBackend& backend = *backends->front();
  ModelSpec spec = {.config = ConfigOf(options.model)};
  const ModelSpec plain = spec;
  if (!options.dense) {
    spec.gate = GateKind::kSilu;
    spec.thresholds = ThresholdSource::kPredicted;
  }
  auto parameters = Parameters::Create(spec, TrainedPart::kAll, backend);
  if (!parameters.ok()) return parameters.status();
  if (absl::Status made = (*parameters)->Initialise({.seed = 1}); !made.ok()) return made;
  const ModelLimits limits = {
      .sequences = options.sequences, .length = options.length, .recompute = !options.keep};
  auto model = TrainingModel::Create(spec, **parameters, limits);
  if (!model.ok()) return model.status();
  std::unique_ptr<Parameters> teacher_parameters;
  std::unique_ptr<TrainingModel> teacher;
  if (options.teacher) {
    auto frozen = Parameters::Create(plain, TrainedPart::kNothing, backend);
    if (!frozen.ok()) return frozen.status();
    teacher_parameters = *std::move(frozen);
    if (absl::Status made = teacher_parameters->Initialise({.seed = 2}); !made.ok()) return made;
    auto created = TrainingModel::Create(
        plain, *teacher_parameters,
        {.sequences = options.sequences, .length = options.length, .backward = false});
    if (!created.ok()) return created.status();
    teacher = *std::move(created);
  }
  MadeUpText text(options.sequences, options.length, spec.config.vocab_size);
  TrainerOptions trainer_options;
  trainer_options.micro_batches = options.micro_batches;
  trainer_options.rate = {.peak = 1e-3, .floor = 1e-3, .warm_up = 5};
  trainer_options.block_share = options.dense ? 0.0 : options.block_share;
  trainer_options.sparsity.peak = options.dense ? 0.0 : 1e-2;
  auto trainer = Trainer::Create(trainer_options, **model, teacher.get(), text);
  if (!trainer.ok()) return trainer.status();
  std::printf("%s: %s, %d x %d x %d tokens a step%s%s\n", backend.description().c_str(),
              options.model.c_str(), options.micro_batches, options.sequences, options.length,
              options.dense ? ", dense" : ", gated", options.teacher ? ", with a teacher" : "");
  double first = 0.0;
  double last = 0.0;
  int64_t tokens = 0;
  auto begin = std::chrono::steady_clock::now();
  for (int32_t i = 0; i < options.steps; ++i) {
    if (i == options.warm_up) {
      begin = std::chrono::steady_clock::now();
      tokens = 0;
    }
    const absl::StatusOr<StepReport> report = (*trainer)->Step();
    if (!report.ok()) return report.status();
    tokens += report->tokens;
    last = report->cross_entropy;
    if (i == 0) first = last;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%.0f tokens/s, %.1f ms a step; cross-entropy %.4f, then %.4f\n",
              static_cast<double>(tokens) / seconds,
              seconds * 1e3 / std::max(1, options.steps - options.warm_up), first, last);
  if (!(last < first)) return absl::InternalError("the loss has not fallen");
  return absl::OkStatus();
}

}  // namespace
}  // namespace eta::training

int main(int argc, char** argv) {
  eta::training::Options options;
  CLI::App app("Times training steps of a model with random weights.");
  app.add_option("--backend", options.backend, "Training backend");
  app.add_option("--model", options.model, "eta-27m or smollm2-135m: the geometry");
  app.add_option("--sequences", options.sequences, "Sequences of a micro-batch");
  app.add_option("--length", options.length, "Tokens of a sequence");
  app.add_option("--micro_batches", options.micro_batches, "Micro-batches of a step");
  app.add_option("--steps", options.steps, "Steps");
  app.add_option("--warm_up", options.warm_up, "Steps that are not timed");
  app.add_option("--block_share", options.block_share, "Share of whole blocks in the regulariser");
  app.add_flag("--dense", options.dense, "Without a gate");
  app.add_flag("--teacher", options.teacher, "With a dense teacher");
  app.add_flag("--keep", options.keep, "Keep activations instead of computing them again");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = eta::training::Run(options);
  if (status.ok()) return 0;
  std::printf("%s\n", std::string(status.message()).c_str());
  return 1;
}
