// eta-train adapt: gives a model that was trained densely a gate and a threshold predictor. The
// gate grows from nothing to its full strength while the model is held to what the original says;
// then the sparsity weight is steered towards the block union that was asked for.

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/runtime/number_flags.h"
#include "calibration/evaluation/runtime/program.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model_fingerprint.h"
#include "training/adaptation/start_thresholds.h"
#include "training/commands/commands.h"
#include "training/commands/run_flags.h"
#include "training/commands/training_run.h"
#include "training/export/exported_config.h"

namespace eta::training {
namespace {

// The sparsity weight is steered after the steps over which the gate grows, times this.
constexpr double kSettling = 1.25;

struct AdaptCommand {
  RunFlags run;
  std::string model;
  std::string train = "all";
  double target_union = 0.25;
  double max_perplexity_increase = 1.0;  // percent
  double gate_share = 1.0 / 3.0;
  double sparsity = 0.05;
  double answers = 1.0;
  double start_mass = 0.97;

  void Register(CLI::App& command);
  absl::Status Run();

 private:
  absl::StatusOr<ModelSpec> Spec(const ModelConfig& original) const;
  TrainerOptions Trainer() const;
  std::map<std::string, std::string> Settings(const std::string& fingerprint) const;
  std::string Method() const;
  absl::Status SetStartThresholds(RankTeam& team, TrainingData& data) const;
};

void AdaptCommand::Register(CLI::App& command) {
  run.learning_rate = 3e-4;
  run.weight_decay = 0.0;
  run.evaluate_every = 20;
  command.add_option("--model", model, "GGUF file or folder of the model to adapt")->required();
  run.Register(command);
  command
      .add_option("--train", train, "all weights; predictor: what predicts the thresholds alone")
      ->check(CLI::IsMember({"all", "predictor"}))
      ->capture_default_str();
  AddReal(command, "--union", target_union, 0.01, 1.0,
          "Share of the blocks that sparse decoding shall read: steered by held-out text; at the "
          "end the model is judged by it, within 1 %");
  AddReal(
      command, "--max_perplexity_increase", max_perplexity_increase, 0.0, 1000.0,
      "Percent that sparse attention's perplexity may lie above the original's: the other bound "
      "that the model is judged by");
  AddReal(command, "--gate_share", gate_share, 0.0, 1.0,
          "Share of the steps over which the gate grows to its full strength");
  AddReal(command, "--sparsity", sparsity, 1e-5, 10.0,
          "Weight of the sparsity loss before the first measurement moves it");
  AddReal(command, "--answers", answers, 0.0, 1e3,
          "Weight of the answers of retrieval tasks, against the difference from the original");
  AddReal(command, "--start_mass", start_mass, 0.5, 0.9999,
          "Share of the attention that the thresholds keep at the start");
}

absl::StatusOr<ModelSpec> AdaptCommand::Spec(const ModelConfig& original) const {
  if (original.has_predictor) {
    return absl::FailedPreconditionError("model: it predicts thresholds already");
  }
  ModelSpec spec = {
      .config = original, .gate = GateKind::kSilu, .thresholds = ThresholdSource::kPredicted};
  RETURN_IF_ERROR(ValidateSpec(spec));
  return spec;
}

TrainerOptions AdaptCommand::Trainer() const {
  TrainerOptions options = run.Trainer();
  options.beta = {.first = run.beta, .last = run.beta, .steps = 0};
  options.gate_strength = {.first = 0.0, .last = 1.0, .steps = StepsOf(gate_share, run.steps)};
  // All of it from the step on at which the gate has its full strength.
  options.sparsity = {
      .peak = 1.0, .delay = 0, .ramp = StepsOf(gate_share, run.steps), .final_share = 1.0};
  options.dual_ascent =
      DualAscentOptions{.target_union = target_union,
                        .max_perplexity_increase = max_perplexity_increase / 100.0,
                        .initial_weight = sparsity};
  options.ce_scale = static_cast<float>(answers);
  return options;
}

std::map<std::string, std::string> AdaptCommand::Settings(const std::string& fingerprint) const {
  return {{"command", "adapt"},
          {"model", fingerprint},
          {"train", train},
          {"union", NumberText(target_union)},
          {"max_perplexity_increase", NumberText(max_perplexity_increase)},
          {"gate_share", NumberText(gate_share)},
          {"sparsity", NumberText(sparsity)},
          {"answers", NumberText(answers)},
          {"start_mass", NumberText(start_mass)}};
}

std::string AdaptCommand::Method() const {
  return absl::StrFormat(
      "A dense language model that eta-train adapted to Elastic Threshold Attention (%s trained): "
      "the gate grew to full strength while the model was held to what the original says, and "
      "sparsity was steered towards a block union of %g.",
      train == "all" ? "all weights" : "the predictor alone", target_union);
}

absl::Status AdaptCommand::SetStartThresholds(RankTeam& team, TrainingData& data) const {
  ASSIGN_OR_RETURN(const std::vector<LinearThresholds> start,
                   FitStartThresholds(team.model(), data,
                                      {.sequences_at_a_time = run.micro_batch,
                                       .mass = start_mass,
                                       .threads = run.Data().cache.threads}));
  for (size_t layer = 0; layer < start.size(); ++layer) {
    const std::string prefix = LayerPrefix(static_cast<int32_t>(layer)) + "self_attn.tau_proj.";
    RETURN_IF_ERROR(team.Write(prefix + "weight", start[layer].weight));
    RETURN_IF_ERROR(team.Write(prefix + "bias", start[layer].bias));
  }
  return absl::OkStatus();
}

absl::Status AdaptCommand::Run() {
  if (run.held_out.empty()) {
    return InvalidField("held_out", "is needed: the block union is measured on it");
  }
  ASSIGN_OR_RETURN(const Checkpoint original, Checkpoint::Open(model));
  ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(original.config_json()));
  // Of sequences within its window every layer sees all keys.
  config = ForContext(std::move(config), run.sequence_tokens);
  RETURN_IF_ERROR(ValidateTensors(config, original.tensors()));
  ASSIGN_OR_RETURN(const ModelSpec spec, Spec(config));
  ASSIGN_OR_RETURN(const std::string fingerprint, ModelFingerprint(config, original));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   Tokenizer::Load(original.tokenizer_files(), config));
  if (!tokenizer->knows_text()) {
    return absl::FailedPreconditionError("model: it has no tokenizer");
  }

  RunPlan plan;
  plan.flags = run;
  plan.team = {.backend = run.backend,
               .spec = spec,
               .trained = train == "all" ? TrainedPart::kAll : TrainedPart::kPredictor,
               .init = {.seed = run.seed},
               .original = &original,
               .teacher = true,
               .loss = LossKind::kAnswers,
               .trainer = Trainer()};
  plan.tokenizer = tokenizer.get();
  plan.tokenizer_fingerprint = original.tokenizer_fingerprint();
  plan.texts = {.tokenizer = original.tokenizer_files(),
                .generation_config_json = original.generation_config_json()};
  plan.config_json = [&](float beta) {
    return AdaptedConfigJson(original.config_json(), spec, beta);
  };
  plan.settings = Settings(fingerprint);
  plan.method = Method();
  plan.steer_from = StepsOf(gate_share * kSettling, run.steps);
  plan.original = std::filesystem::path(model).lexically_normal().filename().string();
  plan.prepare = [this](RankTeam& team, TrainingData& data) {
    return SetStartThresholds(team, data);
  };
  return TrainingRun(std::move(plan)).Run();
}

}  // namespace

void AddAdaptCommand(CLI::App& app, absl::Status& status) {
  AddCommand<AdaptCommand>(app, status, "adapt", "Gives a dense model dynamic thresholds")
      ->footer(
          "Writes to --output: checkpoint.safetensors, from which --resume goes on; log.jsonl;\n"
          "curves.svg; and at the end model/, which eta-server loads. Measured every\n"
          "--evaluate_every steps: the block union, which the sparsity weight is steered by.\n"
          "At the end the model is judged by --union and --max_perplexity_increase, on --test or,\n"
          "without one, on --held_out. Exit code 4: a bound is not kept, or fewer than 1024\n"
          "tokens were scored; the card says which.\n\n"
          "The schedule is our own: the paper adapts no model. Its schedule is that of pretrain\n"
          "--preset=paper, which --init starts with the weights of a dense LLaMA.");
}

}  // namespace eta::training
