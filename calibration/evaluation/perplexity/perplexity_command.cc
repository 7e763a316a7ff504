// eta-eval perplexity: compares ways of attending over the same windows of a text.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "calibration/evaluation/attention/attention_flags.h"
#include "calibration/evaluation/attention/fit_constants.h"
#include "calibration/evaluation/commands.h"
#include "calibration/evaluation/perplexity/perplexity.h"
#include "calibration/evaluation/perplexity/perplexity_report.h"
#include "calibration/evaluation/progress_bar.h"
#include "calibration/evaluation/runtime_flags.h"
#include "calibration/evaluation/text/windows.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {
namespace {

constexpr int32_t kMaxContext = 1 << 20;

struct PerplexityCommand {
  RuntimeFlags runtime;
  std::string text;
  int32_t context = 0;
  int32_t prefill = 0;
  int32_t windows = 0;
  bool by_document = false;
  AttentionFlags attentions;
  bool recall = true;
  double mass = 0.0;
  bool json = false;

  void Register(CLI::App& command);
  absl::Status Run() const;
};

void PerplexityCommand::Register(CLI::App& command) {
  runtime.Register(command);
  command
      .add_option("--text", text,
                  "Text to predict: .txt, or .jsonl with a field 'text' per line; either may be "
                  "compressed as .xz")
      ->required();
  command.add_option("--context", context, "Predictions of one window")
      ->required()
      ->check(CLI::Range(1, kMaxContext));
  command
      .add_option("--prefill", prefill,
                  "Rows of a window that are fed as a prompt and not scored; the rest is decoded "
                  "token by token")
      ->check(CLI::Range(0, kMaxContext))
      ->capture_default_str();
  command.add_option("--windows", windows, "Windows to take at most; 0: all that the text fills")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command.add_flag(
      "--by_document", by_document,
      "Windows as calibration's sequences: each in one document, a begin-of-text token "
      "in front, evenly spaced over the text");
  attentions.Register(command);
  command.add_option(
      "--recall", recall,
      "Measure the share of above-threshold keys that were admitted (reads every key) [true]");
  command
      .add_option("--mass", mass,
                  "Measure on this share of the decode rows what full attention would have had: "
                  "mass kept and output error (reads every key of them once more)")
      ->check([](const std::string& number) { return CheckReal(number, 0.0, 1.0); })
      ->capture_default_str();
  command.add_flag("--json", json, "Write the outcome to stdout as JSON");
}

absl::Status PerplexityCommand::Run() const {
  if (prefill >= context) return InvalidField("prefill", "must be less than context");
  const absl::StatusOr<std::unique_ptr<TextSource>> source = TextSource::Open(text);
  if (!source.ok()) return source.status();
  const absl::StatusOr<std::unique_ptr<Runtime>> loaded = Runtime::Load(runtime);
  if (!loaded.ok()) return loaded.status();
  const ModelConfig& config = (*loaded)->config();
  const KvGeometry geometry = MakeKvGeometry(config, runtime.kv_dtype, runtime.index_dtype);
  absl::StatusOr<std::vector<EvaluatedAttention>> evaluated =
      attentions.Resolve(**loaded, geometry);
  if (!evaluated.ok()) return evaluated.status();
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      Tokenizer::Load((*loaded)->checkpoint().tokenizer_files(), config);
  if (!tokenizer.ok()) return tokenizer.status();
  const absl::StatusOr<std::vector<std::vector<int32_t>>> cut =
      (by_document ? ReadDocumentWindows : ReadWindows)(**source, **tokenizer, context, windows,
                                                        kMaxTextTokens);
  if (!cut.ok()) return cut.status();
  const absl::StatusOr<std::unique_ptr<SequenceRunner>> runner =
      (*loaded)->MakeRunner(geometry, context);
  if (!runner.ok()) return runner.status();
  RETURN_IF_ERROR(FitConstants(**runner, (*loaded)->rivals(), cut->front(), prefill, *evaluated));

  ProgressBar bar;
  const absl::StatusOr<std::vector<AttentionScore>> scores = EvaluatePerplexity(
      **runner, *cut, *evaluated,
      {.prefill = prefill,
       .recall = recall,
       .special_ids = (*tokenizer)->special_ids(),
       .rivals = &(*loaded)->rivals(),
       .shadow = &(*loaded)->shadow(),
       .mass = mass,
       .progress = [&bar](int64_t done, int64_t total) { bar.Show(done, total); }});
  if (!scores.ok()) return scores.status();
  const PerplexityRun run = {.model = runtime.model_dir,
                             .text = text,
                             .backend = (*loaded)->backend().description(),
                             .kv_dtype = std::string(Name(runtime.kv_dtype)),
                             .index = std::string(Name(geometry.index)),
                             .index_dtype = std::string(Name(geometry.index_dtype)),
                             .weights = runtime.weights == WeightFormat::kInt8 ? "int8" : "native",
                             .context = context,
                             .prefill = prefill,
                             .windows = static_cast<int64_t>(cut->size())};
  const std::string report =
      json ? PerplexityJson(run, *evaluated, *scores) : PerplexityTable(run, *evaluated, *scores);
  std::fputs(report.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddPerplexityCommand(CLI::App& app, absl::Status& status) {
  CLI::App* sub = app.add_subcommand(
      "perplexity", "Compares ways of attending by perplexity, density and recall");
  auto command = std::make_shared<PerplexityCommand>();
  command->Register(*sub);
  sub->footer(
      "The text's documents follow one another, each between begin- and end-of-text, and are cut\n"
      "into windows of --context predictions. Densities are means over scored rows, layers and\n"
      "heads of tokens attended (head) and tokens read per KV head (union) over the row's keys.\n"
      "Full attention is gated like the rest and prunes nothing: its densities are 1. Intervals\n"
      "are 95 %, over blocks of 256 consecutive tokens.");
  sub->callback([command, &status] { status = command->Run(); });
}

}  // namespace eta
