// eta-eval index-metric: measures a model's queries and keys on text and writes
// index_metric.safetensors, which blocks of kind outlier choose their outliers by.

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "calibration/evaluation/commands/commands.h"
#include "calibration/evaluation/commands/progress_bar.h"
#include "calibration/evaluation/index_metric/index_metric.h"
#include "calibration/evaluation/index_metric/index_savings.h"
#include "calibration/evaluation/runtime/number_flags.h"
#include "calibration/evaluation/runtime/program.h"
#include "calibration/evaluation/text/windows.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {
namespace {

constexpr int32_t kMaxContext = 1 << 20;
constexpr char kFileName[] = "index_metric.safetensors";

struct IndexMetricCommand {
  std::string model;
  BackendOptions backend;
  std::vector<std::string> texts;
  std::string output;
  bool overwrite = false;
  int32_t context = 4096;
  int32_t windows = 4;

  void Register(CLI::App& command);
  absl::StatusOr<std::string> Path() const;
  absl::Status Run() const;
};

void IndexMetricCommand::Register(CLI::App& command) {
  command.add_option("--model", model, "GGUF file or folder of the checkpoint")->required();
  command.add_option("--backend", backend.name, "Backend that computes")
      ->check(CLI::IsMember({"cpu", "reference"}))
      ->capture_default_str();
  AddCount(command, "--threads", backend.num_threads, 0, 1024,
           "Threads of the cpu backend; 0: one per CPU that this process may use");
  command
      .add_option("--text", texts,
                  "Text that the model is run over: .txt or .jsonl, also .xz; may be given several "
                  "times")
      ->required()
      ->allow_extra_args(false);
  AddCount(command, "--context", context, 1, kMaxContext, "Tokens of one window");
  AddCount(command, "--windows", windows, 0, 1 << 20,
           "Windows to take of each text at most; 0: all that it fills");
  command.add_option("--output", output,
                     absl::StrCat("File to write [", kFileName, " in the model's folder]"));
  command.add_flag("--overwrite", overwrite, "Replace the file if there is one");
}

// The file to write. InvalidArgument if there is no folder for it; AlreadyExists.
absl::StatusOr<std::string> IndexMetricCommand::Path() const {
  std::error_code error;
  if (output.empty() && !std::filesystem::is_directory(model, error)) {
    return InvalidField("output",
                        "is needed: the model is no folder. A GGUF file becomes one by import");
  }
  const std::string path = output.empty() ? absl::StrCat(model, "/", kFileName) : output;
  if (!overwrite && std::filesystem::exists(path, error)) {
    return absl::AlreadyExistsError(
        absl::StrCat("output: '", path, "' is there already; --overwrite replaces it"));
  }
  return path;
}

absl::Status IndexMetricCommand::Run() const {
  ASSIGN_OR_RETURN(const std::string path, Path());
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(model));
  ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(checkpoint.config_json()));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   Tokenizer::Load(checkpoint.tokenizer_files(), config));
  std::vector<std::vector<int32_t>> all;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(const std::unique_ptr<TextSource> source, TextSource::Open(text));
    ASSIGN_OR_RETURN(std::vector<std::vector<int32_t>> cut,
                     ReadWindows(*source, *tokenizer, context, windows));
    for (auto& window : cut) all.push_back(std::move(window));
    RETURN_IF_ERROR(CheckTextTokens(all.size() * (static_cast<size_t>(context) + 1)));
  }
  ProgressBar bar;
  RETURN_IF_ERROR(MeasureIndexMetric(
      checkpoint, all,
      {.backend = backend,
       .progress = [&bar](int64_t done, int64_t total) { bar.Show(done, total); }},
      path));
  std::printf("%s: %zu windows of %d tokens\n", path.c_str(), all.size(), context);
  if (config.index != IndexKind::kOutlier) return absl::OkStatus();
  ASSIGN_OR_RETURN(const IndexSavings savings,
                   MeasureIndexSavings(checkpoint, path, all.back(), backend));
  std::printf(
      "the last window reads %.1f %% of the cache without it (KL %.3g nats), %.1f %% with it "
      "(KL %.3g nats): %.1f %% less\n",
      100.0 * savings.without.union_density, savings.without.divergence,
      100.0 * savings.with.union_density, savings.with.divergence, savings.percent());
  return absl::OkStatus();
}

}  // namespace

void AddIndexMetricCommand(CLI::App& app, absl::Status& status) {
  AddCommand<IndexMetricCommand>(app, status, "index-metric",
                                 "Measures queries and keys on text for records of kind outlier")
      ->footer(
          "The file holds, for every layer I, layers.I.metric [HKV, d, d], the second moment of\n"
          "queries after RoPE, and layers.I.centre [HKV, d], the mean key. A server reads it at "
          "its\n"
          "start; profiles that were made without it are another model's then. With an index of "
          "kind\n"
          "outlier the last window is then run with the file and without it, under the model's "
          "own\n"
          "thresholds: what both read, and their divergence from full attention.");
}

}  // namespace eta
