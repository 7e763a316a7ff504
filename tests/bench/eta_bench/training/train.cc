// eta-bench train: training steps of a whole model with random weights: tokens per second of
// forward, backward and AdamW, gated, dense and with native sparse attention. The text is made up
// and can be learnt: the loss must fall.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/eta_bench/eta_bench.h"
#include "training/backend.h"
#include "training/backends/make_backends.h"
#include "training/model/parameters.h"
#include "training/model/training_model.h"
#include "training/trainer/trainer.h"

namespace eta::bench {
namespace {

using training::ModelLimits;
using training::ModelSpec;
using training::Parameters;
using training::TrainedPart;
using training::Trainer;
using training::TrainingBackend;
using training::TrainingModel;

struct Options {
  std::string backend = "cuda";
  std::string model = "eta-27m";
  int32_t sequences = 16;
  int32_t length = 4096;
  int32_t micro_batches = 1;
  int32_t steps = 12;
  int32_t warm_up = 3;
  double block_share = 0.5;
  std::string attention = "gated";
  bool dense = false;
  bool teacher = false;
  bool keep = false;

  bool native_sparse() const { return attention == "nsa"; }
  bool gated() const { return !dense && !native_sparse(); }
};

// Words of one order: token t is followed by one of two tokens.
class MadeUpText final : public training::BatchSource {
 public:
  MadeUpText(int32_t sequences, int32_t length, int32_t vocab)
      : sequences_(sequences), length_(length), vocab_(vocab) {}

  absl::Status Next(training::MicroBatch& batch) override {
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

Json Run(const Options& options) {
  const auto backends = Require(training::MakeTrainingBackends({.name = options.backend}));
  TrainingBackend& backend = *backends.front();
  ModelSpec spec = {.config = ConfigOf(options.model)};
  const ModelSpec plain = spec;
  if (options.native_sparse()) spec.attention = training::AttentionScheme::kNativeSparse;
  if (options.gated()) {
    spec.gate = training::GateKind::kSilu;
    spec.thresholds = training::ThresholdSource::kPredicted;
  }
  const auto parameters = Require(Parameters::Create(spec, TrainedPart::kAll, backend));
  RequireOk(parameters->Initialise({.seed = 1}));
  const ModelLimits limits = {
      .sequences = options.sequences, .length = options.length, .recompute = !options.keep};
  const auto model = Require(TrainingModel::Create(spec, *parameters, limits));
  std::unique_ptr<Parameters> teacher_parameters;
  std::unique_ptr<TrainingModel> teacher;
  if (options.teacher) {
    teacher_parameters = Require(Parameters::Create(plain, TrainedPart::kNothing, backend));
    RequireOk(teacher_parameters->Initialise({.seed = 2}));
    teacher = Require(TrainingModel::Create(
        plain, *teacher_parameters,
        {.sequences = options.sequences, .length = options.length, .backward = false}));
  }
  MadeUpText text(options.sequences, options.length, spec.config.vocab_size);
  training::TrainerOptions trainer_options;
  trainer_options.micro_batches = options.micro_batches;
  trainer_options.rate = {.peak = 1e-3, .floor = 1e-3, .warm_up = 5};
  trainer_options.block_share = options.gated() ? options.block_share : 0.0;
  trainer_options.sparsity.peak = options.gated() ? 1e-2 : 0.0;
  const auto trainer = Require(Trainer::Create(trainer_options, *model, teacher.get(), text));
  double first = 0.0;
  double last = 0.0;
  int64_t tokens = 0;
  Stopwatch watch;
  for (int32_t i = 0; i < options.steps; ++i) {
    if (i == options.warm_up) {
      watch = Stopwatch();
      tokens = 0;
    }
    const training::StepReport report = Require(trainer->Step());
    tokens += report.tokens;
    last = report.cross_entropy;
    if (i == 0) first = last;
  }
  const double seconds = watch.seconds();
  if (!(last < first)) Fail("the loss has not fallen");
  return {{"bench", "train"},
          {"description", backend.description()},
          {"model", options.model},
          {"tokens_per_step", options.micro_batches * options.sequences * options.length},
          {"attention", options.dense ? "dense" : options.attention},
          {"teacher", options.teacher},
          {"tokens_per_s", static_cast<double>(tokens) / seconds},
          {"milliseconds", seconds * 1e3 / std::max(1, options.steps - options.warm_up)},
          {"first_cross_entropy", first},
          {"last_cross_entropy", last}};
}

void Print(const Json& report) {
  std::printf("%s\n\n", report["description"].get<std::string>().c_str());
  PrintTable(Json::array({report}), {{"model", "model"},
                                     {"tokens a step", "tokens_per_step"},
                                     {"attention", "attention"},
                                     {"teacher", "teacher"},
                                     {"tokens/s", "tokens_per_s"},
                                     {"ms a step", "milliseconds", 1},
                                     {"cross-entropy", "first_cross_entropy", 4},
                                     {"then", "last_cross_entropy", 4}});
}

}  // namespace

void AddTrainCommand(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("train", "Training steps of a model with random weights");
  command->add_option("--backend", options->backend, "Training backend")->capture_default_str();
  command->add_option("--model", options->model, "The geometry")
      ->check(CLI::IsMember({"eta-27m", "smollm2-135m"}))
      ->capture_default_str();
  command->add_option("--sequences", options->sequences, "Of a micro-batch")->capture_default_str();
  command->add_option("--length", options->length, "Tokens of a sequence")->capture_default_str();
  command->add_option("--micro_batches", options->micro_batches, "Of a step")
      ->capture_default_str();
  command->add_option("--steps", options->steps)->capture_default_str();
  command->add_option("--warm_up", options->warm_up, "Steps that are not timed")
      ->capture_default_str();
  command->add_option("--block_share", options->block_share, "Of whole blocks in the regulariser")
      ->capture_default_str();
  CLI::Option* attention =
      command
          ->add_option("--attention", options->attention, "gated, or nsa: Native Sparse Attention")
          ->check(CLI::IsMember({"gated", "nsa"}))
          ->capture_default_str();
  command->add_flag("--dense", options->dense, "Without a gate")->excludes(attention);
  command->add_flag("--teacher", options->teacher, "With a dense teacher");
  command->add_flag("--keep", options->keep, "Keep activations instead of computing them again");
  command->callback([options, &chosen] { chosen = {[options] { return Run(*options); }, Print}; });
}

}  // namespace eta::bench
