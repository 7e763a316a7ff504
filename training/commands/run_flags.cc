#include "training/commands/run_flags.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/runtime/number_flags.h"
#include "engine/base/error.h"
#include "engine/base/files/input_file.h"
#include "engine/base/status_macros.h"
#include "kernels/backend.h"
#include "kernels/system/usable_cpus.h"

namespace eta::training {
namespace {

constexpr int32_t kMaxTokens = 1 << 20;

// A text that the run learns from, or is steered by, tests nothing.
absl::Status CheckApart(const std::vector<std::string>& test,
                        const std::vector<std::string>& others, const char* flag) {
  for (const std::string& text : test) {
    for (const std::string& other : others) {
      std::error_code error;  // a file that is absent is named where it is opened
      if (!std::filesystem::equivalent(text, other, error) || error) continue;
      return InvalidField("test", absl::StrCat(Quoted(text.substr(text.rfind('/') + 1)),
                                               " is given as --", flag, " too"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string NumberText(double number) {
  return absl::StrFormat("%.17g", number);
}

int64_t StepsOf(double share, int64_t steps) {
  return std::llround(share * static_cast<double>(steps));
}

void RunFlags::Register(CLI::App& command) {
  command
      .add_option("--text", texts,
                  "Text to train on: .txt, or .jsonl with a field 'text' per line; either may be "
                  "compressed as .xz; may be given several times")
      ->required()
      ->allow_extra_args(false);
  command
      .add_option("--held_out", held_out,
                  "Text to measure on, which is not trained on; may be given several times")
      ->allow_extra_args(false);
  command
      .add_option("--test", test,
                  "Text that the model is measured on once, at the end, for its card: nothing is "
                  "trained, steered or fitted by it. Without it the card's figures are those of "
                  "--held_out, and it says so. May be given several times")
      ->allow_extra_args(false);
  command.add_option("--output", output, "Folder of the run: checkpoint, log, curves, model")
      ->required();
  command.add_flag("--resume", resume,
                   "Go on from the checkpoint in --output; from the beginning if there is none");
  command.add_option("--backend", backend.name, "Backend that trains")
      ->check(CLI::IsMember(TrainingBackendNames()))
      ->capture_default_str();
  AddCount(command, "--threads", backend.num_threads, 0, 1024,
           "Threads of the cpu backend; 0: one per CPU that this process may use");
  AddCount(command, "--devices", backend.num_devices, 1, 64,
           "Devices of the cuda backend, which share a step");

  AddCount(command, "--sequence_tokens", sequence_tokens, 1, kMaxTokens,
           "Predictions of one sequence");
  AddCount(command, "--batch", batch, 1, 1 << 20, "Sequences of a step, over all devices");
  AddCount(command, "--micro_batch", micro_batch, 1, 1 << 16,
           "Sequences that a device computes at a time");
  AddCount(command, "--steps", steps, int64_t{1}, int64_t{1} << 40, "Steps of the run");
  AddCount(command, "--seed", seed, uint64_t{0}, std::numeric_limits<uint64_t>::max(),
           "Of the first weights, the order of the text and the retrieval tasks");
  AddReal(command, "--retrieval", retrieval, 0.0, 1.0,
          "Share of the sequences that are retrieval tasks in text");
  AddReal(command, "--learning_rate", learning_rate, 0.0, 1.0, "Learning rate at its peak");
  AddReal(command, "--final_rate", final_rate, 0.0, 1.0, "Share of it at the end of the cosine");
  AddReal(command, "--warm_up", warm_up, 0.0, 1.0, "Share of the steps that lead up to the peak");
  AddReal(command, "--weight_decay", weight_decay, 0.0, 1.0, "Weight decay of matrices");
  AddReal(command, "--clip", clip, 0.0, 1e6, "Largest norm of all gradients; 0: any");
  AddReal(command, "--block_share", block_share, 0.0, 1.0,
          "Share of the sparsity loss that counts whole blocks by their largest gate");
  AddReal(command, "--beta", beta, 1e-3, 1000.0, "Sharpness of the gate at the end");
  command.add_option(
      "--recompute", recompute,
      "Compute a layer's activations again in the backward pass: less memory [true]");

  AddReal(command, "--minutes", minutes, 0.0, 1e6, "Minutes from one checkpoint to the next");
  command.add_option("--log", log, "File of JSON lines [log.jsonl in --output]");
  command.add_option("--cache", cache, "Folder of tokenized texts [tokens in --output]");
  AddCount(command, "--evaluate_every", evaluate_every, int64_t{0}, int64_t{1} << 40,
           "Steps from one measurement on --held_out to the next; 0: at the end alone");
  AddCount(command, "--evaluation_context", evaluation_context, 0, kMaxTokens,
           "Tokens of a window of a measurement; 0: as --sequence_tokens");
  AddCount(command, "--evaluation_windows", evaluation_windows, 1, 1 << 20,
           "Windows to take of each held-out or test text at most");
  AddCount(command, "--needles", needles, 0, 1 << 16,
           "Windows with a hidden number, of a measurement; 0: none");
}

absl::Status RunFlags::Check() const {
  if (batch % (micro_batch * backend.num_devices) != 0) {
    return InvalidField("batch",
                        absl::StrCat("must be a multiple of --micro_batch times --devices, ",
                                     micro_batch * backend.num_devices));
  }
  if (evaluate_every > 0 && held_out.empty()) {
    return InvalidField("evaluate_every", "needs --held_out");
  }
  RETURN_IF_ERROR(CheckApart(test, texts, "text"));
  return CheckApart(test, held_out, "held_out");
}

TrainerOptions RunFlags::Trainer() const {
  TrainerOptions options;
  options.micro_batches = batch / (micro_batch * backend.num_devices);
  options.adamw.weight_decay = weight_decay;
  options.adamw.max_norm = clip;
  options.rate = {.peak = learning_rate,
                  .floor = learning_rate * final_rate,
                  .warm_up = StepsOf(warm_up, steps),
                  .steps = steps};
  options.block_share = block_share;
  return options;
}

DataOptions RunFlags::Data() const {
  DataOptions options;
  options.texts = texts;
  options.sequence_tokens = sequence_tokens;
  options.retrieval_share = retrieval;
  options.seed = seed;
  options.cache.folder = cache.empty() ? output + "/tokens" : cache;
  options.cache.threads =
      backend.num_threads > 0 ? backend.num_threads : ReadUsableCpus().threads();
  return options;
}

HeldOutOptions RunFlags::Measured(const std::vector<std::string>& measured,
                                  const char* flag) const {
  HeldOutOptions options;
  options.texts = measured;
  options.flag = flag;
  options.context = evaluation_context > 0 ? evaluation_context : sequence_tokens;
  options.windows = evaluation_windows;
  options.needles = needles;
  options.backend.name = backend.name;
  options.backend.num_threads = backend.num_threads;
  return options;
}

std::map<std::string, std::string> RunFlags::Settings() const {
  return {{"sequence_tokens", absl::StrCat(sequence_tokens)},
          {"batch", absl::StrCat(batch)},
          {"steps", absl::StrCat(steps)},
          {"seed", absl::StrCat(seed)},
          {"retrieval", NumberText(retrieval)},
          {"learning_rate", NumberText(learning_rate)},
          {"final_rate", NumberText(final_rate)},
          {"warm_up", NumberText(warm_up)},
          {"weight_decay", NumberText(weight_decay)},
          {"clip", NumberText(clip)},
          {"block_share", NumberText(block_share)},
          {"beta", NumberText(beta)}};
}

}  // namespace eta::training
