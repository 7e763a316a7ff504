// eta-train pretrain: a model from scratch. --preset=paper is the run of the paper's appendix
// "Training Details and Hyperparameters".

#include <optional>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "calibration/evaluation/runtime/number_flags.h"
#include "calibration/evaluation/runtime/program.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "training/commands/commands.h"
#include "training/commands/run_flags.h"
#include "training/commands/tokenizer_folder.h"
#include "training/commands/training_run.h"
#include "training/export/exported_config.h"

namespace eta::training {
namespace {

struct PretrainCommand {
  RunFlags run;
  std::string preset;
  std::string tokenizer;
  ModelConfig shape;
  double norm_eps = 1e-5;
  double rope_theta = 5e5;
  std::string init;
  std::string attention = "gated";
  std::string gate = "silu";
  std::string thresholds = "predicted";
  bool dense = false;
  double beta_first = 1.0;
  double beta_share = 0.7;
  double sparsity = 0.05;
  double sparsity_delay = 0.075;
  double sparsity_ramp = 0.169;
  double sparsity_final = 1.0;

  PretrainCommand();
  void Register(CLI::App& command);
  absl::Status Run();

 private:
  void RegisterShape(CLI::App& command);
  void SetPaper();
  bool native_sparse() const { return attention == "nsa"; }
  bool gated() const { return !dense && !native_sparse(); }
  absl::Status CheckNativeSparse() const;
  absl::StatusOr<ModelSpec> Spec() const;
  TrainerOptions Trainer() const;
  std::map<std::string, std::string> Settings() const;
  std::string Method() const;
  absl::Status OpenInit(std::optional<Checkpoint>& checkpoint) const;

  CLI::App* command_ = nullptr;  // knows which flags were given
};

// The geometry of eta-27m.
PretrainCommand::PretrainCommand() {
  shape.model_dim = 512;
  shape.ffn_dim = 1408;
  shape.num_layers = 8;
  shape.num_query_heads = 8;
  shape.num_kv_heads = 2;
  shape.head_dim = 64;
  shape.tie_word_embeddings = true;
}

void PretrainCommand::RegisterShape(CLI::App& command) {
  const auto add = [&](const char* name, int32_t& value, int32_t most, const char* help) {
    AddCount(command, name, value, 1, most, help);
  };
  command.add_option("--tokenizer", tokenizer, "Folder with tokenizer.json or tokenizer.model")
      ->required();
  AddCount(command, "--vocab_size", shape.vocab_size, 0, 1 << 20,
           "Rows of the embedding; 0: as many as tokenizer.model has pieces");
  add("--layers", shape.num_layers, 512, "Layers");
  add("--width", shape.model_dim, 65536, "Width of the model");
  add("--ffn", shape.ffn_dim, 262144, "Width of the feed-forward layers");
  add("--query_heads", shape.num_query_heads, 1024, "Query heads");
  add("--kv_heads", shape.num_kv_heads, 1024, "Key-value heads; they divide the query heads");
  add("--head_dim", shape.head_dim, 256, "Dimension of a head; even");
  add("--block_size", shape.block_size, 128, "Tokens of a block of the cache; a multiple of 4");
  add("--max_context", shape.max_context, ModelConfig::kMaxTrainedContext,
      "Tokens that the model is said to be trained for [--sequence_tokens]");
  AddReal(command, "--norm_eps", norm_eps, 1e-12, 0.1, "Epsilon of the norms");
  AddReal(command, "--rope_theta", rope_theta, 1.0, 1e12, "Base of RoPE");
  command.add_option("--tied", shape.tie_word_embeddings,
                     "The embedding is the output's matrix too [true]");
}

void PretrainCommand::Register(CLI::App& command) {
  command_ = &command;
  RegisterShape(command);
  run.Register(command);
  command
      .add_option("--preset", preset,
                  "paper: the schedule of the paper's run of 1.45B parameters (appendix \"Training "
                  "Details and Hyperparameters\"), listed below; flags that are given win")
      ->check(CLI::IsMember({"paper"}));
  command.add_option("--init", init,
                     "Folder of a model of this geometry whose weights it starts with; without it "
                     "they are random");
  command
      .add_option("--attention", attention,
                  "gated: Elastic Threshold Attention; nsa: Native Sparse Attention "
                  "(arXiv:2502.11089), a rival, which the server does not run")
      ->check(CLI::IsMember({"gated", "nsa"}))
      ->capture_default_str();
  command
      .add_option("--gate", gate,
                  "silu: logits are multiplied with the gate, which the server runs; additive: the "
                  "paper's ablation")
      ->check(CLI::IsMember({"silu", "additive"}))
      ->capture_default_str();
  command
      .add_option("--thresholds", thresholds,
                  "predicted from the queries; static: the paper's ablation, one per head")
      ->check(CLI::IsMember({"predicted", "static"}))
      ->capture_default_str();
  command.add_flag("--dense", dense, "Without gate and thresholds, for comparison");
  AddReal(command, "--beta_first", beta_first, 1e-3, 1000.0, "Sharpness of the gate at the start");
  AddReal(command, "--beta_share", beta_share, 0.0, 1.0,
          "Share of the steps over which the gate's sharpness goes from there to --beta");
  AddReal(command, "--sparsity", sparsity, 0.0, 1e3, "Weight of the sparsity loss at its peak");
  AddReal(command, "--sparsity_delay", sparsity_delay, 0.0, 1.0,
          "Share of the steps before it begins");
  AddReal(command, "--sparsity_ramp", sparsity_ramp, 0.0, 1.0,
          "Share of the steps that lead up to the peak");
  AddReal(command, "--sparsity_final", sparsity_final, 0.0, 1.0,
          "Share of the peak that is left after it");
}

// 10,000 steps of 2048 sequences of 2048 tokens; 300 steps of warm-up; beta anneals over 7,000; the
// sparsity loss is 0 for 750 steps, rises over 1,690 to its peak and stays at 5 % of that. It is
// the mean gate, without whole blocks, and no sequence is a retrieval task. The help lists the
// same.
void PretrainCommand::SetPaper() {
  const auto set = [this](const char* flag, auto& value, auto paper) {
    if (command_->get_option(flag)->empty()) value = paper;
  };
  set("--steps", run.steps, 10000);
  set("--batch", run.batch, 2048);
  set("--sequence_tokens", run.sequence_tokens, 2048);
  set("--retrieval", run.retrieval, 0.0);
  set("--learning_rate", run.learning_rate, 4e-4);
  set("--final_rate", run.final_rate, 0.1);
  set("--warm_up", run.warm_up, 0.03);
  set("--weight_decay", run.weight_decay, 0.1);
  set("--clip", run.clip, 1.0);
  set("--beta_first", beta_first, 1.0);
  set("--beta", run.beta, 5.0);
  set("--beta_share", beta_share, 0.7);
  set("--sparsity", sparsity, 5e-4);
  set("--sparsity_delay", sparsity_delay, 0.075);
  set("--sparsity_ramp", sparsity_ramp, 0.169);
  set("--sparsity_final", sparsity_final, 0.05);
  set("--block_share", run.block_share, 0.0);
}

// What is of gates and thresholds alone.
absl::Status PretrainCommand::CheckNativeSparse() const {
  if (!native_sparse()) return absl::OkStatus();
  for (const char* flag :
       {"gate", "thresholds", "dense", "beta", "beta_first", "beta_share", "sparsity",
        "sparsity_delay", "sparsity_ramp", "sparsity_final", "block_share"}) {
    if (command_->get_option(absl::StrCat("--", flag))->empty()) continue;
    return InvalidField(flag,
                        "makes no sense with --attention=nsa, which has neither gate nor "
                        "thresholds");
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelSpec> PretrainCommand::Spec() const {
  RETURN_IF_ERROR(CheckNativeSparse());
  if (dense && (gate != "silu" || thresholds != "predicted")) {
    return InvalidField("dense", "has neither gate nor thresholds");
  }
  ModelSpec spec = {.config = shape};
  if (native_sparse()) spec.attention = AttentionScheme::kNativeSparse;
  if (gated()) {
    spec.gate = gate == "silu" ? GateKind::kSilu : GateKind::kAdditive;
    spec.thresholds =
        thresholds == "static" ? ThresholdSource::kStatic : ThresholdSource::kPredicted;
  }
  RETURN_IF_ERROR(ValidateSpec(spec));
  return spec;
}

TrainerOptions PretrainCommand::Trainer() const {
  TrainerOptions options = run.Trainer();
  options.beta = {.first = beta_first, .last = run.beta, .steps = StepsOf(beta_share, run.steps)};
  options.gate_strength = {.first = 1.0, .last = 1.0, .steps = 0};
  options.sparsity = {.peak = gated() ? sparsity : 0.0,
                      .delay = StepsOf(sparsity_delay, run.steps),
                      .ramp = StepsOf(sparsity_ramp, run.steps),
                      .final_share = sparsity_final};
  return options;
}

std::map<std::string, std::string> PretrainCommand::Settings() const {
  return {{"command", "pretrain"},
          {"vocab_size", absl::StrCat(shape.vocab_size)},
          {"layers", absl::StrCat(shape.num_layers)},
          {"width", absl::StrCat(shape.model_dim)},
          {"ffn", absl::StrCat(shape.ffn_dim)},
          {"query_heads", absl::StrCat(shape.num_query_heads)},
          {"kv_heads", absl::StrCat(shape.num_kv_heads)},
          {"head_dim", absl::StrCat(shape.head_dim)},
          {"block_size", absl::StrCat(shape.block_size)},
          {"max_context", absl::StrCat(shape.max_context)},
          {"norm_eps", NumberText(norm_eps)},
          {"rope_theta", NumberText(rope_theta)},
          {"tied", shape.tie_word_embeddings ? "true" : "false"},
          {"attention", attention},
          {"gate", gated() ? gate : "none"},
          {"thresholds", gated() ? thresholds : "none"},
          {"beta_first", NumberText(beta_first)},
          {"beta_share", NumberText(beta_share)},
          {"sparsity", NumberText(sparsity)},
          {"sparsity_delay", NumberText(sparsity_delay)},
          {"sparsity_ramp", NumberText(sparsity_ramp)},
          {"sparsity_final", NumberText(sparsity_final)}};
}

std::string PretrainCommand::Method() const {
  constexpr char kHow[] = ", trained from scratch by eta-train.";
  if (native_sparse()) {
    return absl::StrCat("A language model with Native Sparse Attention (arXiv:2502.11089)", kHow,
                        " It is a rival of Elastic Threshold Attention.");
  }
  if (dense) return absl::StrCat("A dense language model", kHow);
  return absl::StrCat("A language model with Elastic Threshold Attention (gate ", gate,
                      ", thresholds ", thresholds, ")", kHow);
}

absl::Status PretrainCommand::OpenInit(std::optional<Checkpoint>& checkpoint) const {
  if (init.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(Checkpoint opened, Checkpoint::Open(init));
  checkpoint.emplace(std::move(opened));
  return absl::OkStatus();
}

absl::Status PretrainCommand::Run() {
  if (preset == "paper") SetPaper();
  shape.norm_eps = static_cast<float>(norm_eps);
  shape.rope_theta = static_cast<float>(rope_theta);
  if (shape.max_context == 0) shape.max_context = run.sequence_tokens;
  if (shape.num_query_heads % shape.num_kv_heads != 0) {
    return InvalidField("kv_heads", "must divide --query_heads");
  }
  if (shape.head_dim % 2 != 0) return InvalidField("head_dim", "must be even");
  if (shape.block_size % 4 != 0) return InvalidField("block_size", "must be a multiple of 4");
  ASSIGN_OR_RETURN(const LoadedTokenizer loaded, LoadTokenizerFolder(tokenizer, shape));
  ASSIGN_OR_RETURN(const ModelSpec spec, Spec());

  std::optional<Checkpoint> first;
  RETURN_IF_ERROR(OpenInit(first));

  RunPlan plan;
  plan.flags = run;
  plan.team = {.backend = run.backend,
               .spec = spec,
               .init = {.seed = run.seed},
               .original = first ? &*first : nullptr,
               .loss = LossKind::kText,
               .trainer = Trainer()};
  plan.tokenizer = loaded.tokenizer.get();
  plan.tokenizer_fingerprint = loaded.fingerprint;
  plan.texts.tokenizer = loaded.files;
  plan.config_json = [&spec](float beta) { return PretrainedConfigJson(spec, beta); };
  plan.settings = Settings();
  plan.settings["init"] = first ? first->files_fingerprint() : "random";
  plan.method = Method();
  return TrainingRun(std::move(plan)).Run();
}

}  // namespace

void AddPretrainCommand(CLI::App& app, absl::Status& status) {
  AddCommand<PretrainCommand>(app, status, "pretrain", "Trains a model from scratch")
      ->footer(
          "Writes to --output: checkpoint.safetensors, from which --resume goes on; log.jsonl;\n"
          "curves.svg; and at the end model/, which eta-server loads, unless it was trained with\n"
          "--attention=nsa or --gate=additive.\n\n"
          "--preset=paper, the schedule of the paper's appendix \"Training Details and\n"
          "Hyperparameters\":\n"
          "  --steps=10000 --batch=2048 --sequence_tokens=2048 --retrieval=0\n"
          "  --learning_rate=4e-4 --final_rate=0.1 --warm_up=0.03 --weight_decay=0.1 --clip=1\n"
          "  --beta_first=1 --beta=5 --beta_share=0.7\n"
          "  --sparsity=5e-4 --sparsity_delay=0.075 --sparsity_ramp=0.169 --sparsity_final=0.05\n"
          "  --block_share=0\n"
          "The geometry is not part of it.");
}

}  // namespace eta::training
