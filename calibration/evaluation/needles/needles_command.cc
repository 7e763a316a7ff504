// eta-eval needles: compares ways of attending by what they find in long windows.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "calibration/evaluation/attention/attention_flags.h"
#include "calibration/evaluation/attention/fit_constants.h"
#include "calibration/evaluation/commands.h"
#include "calibration/evaluation/needles/needle_report.h"
#include "calibration/evaluation/progress_bar.h"
#include "calibration/evaluation/runtime_flags.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {
namespace {

constexpr int32_t kMaxContext = 1 << 20;

struct NeedlesCommand {
  RuntimeFlags runtime;
  AttentionFlags attentions;
  std::string text;
  NeedleOptions needles;
  int32_t prefill = 0;
  bool json = false;

  void Register(CLI::App& command);
  absl::Status Run() const;
};

void NeedlesCommand::Register(CLI::App& command) {
  runtime.Register(command);
  command
      .add_option("--text", text, "Text that the needles are hidden in: .txt or .jsonl, also .xz")
      ->required();
  command.add_option("--context", needles.context, "Tokens of one window")
      ->required()
      ->check(CLI::Range(64, kMaxContext));
  command.add_option("--windows", needles.windows, "Windows, with the needle ever deeper")
      ->check(CLI::Range(1, 1 << 12))
      ->capture_default_str();
  command.add_option("--keys", needles.keys, "Needles in a window, of which one is asked for")
      ->check(CLI::Range(1, kMaxNeedles))
      ->capture_default_str();
  command.add_option("--seed", needles.seed, "Of the needles' names and numbers")
      ->capture_default_str();
  command
      .add_option("--prefill", prefill,
                  "Rows of a window that are fed as a prompt; later ones select blocks; 0: all "
                  "before the question")
      ->check(CLI::Range(0, kMaxContext))
      ->capture_default_str();
  attentions.Register(command);
  command.add_flag("--json", json, "Write the outcome to stdout as JSON");
}

absl::Status NeedlesCommand::Run() const {
  if (prefill >= needles.context) return InvalidField("prefill", "must be less than context");
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
  const absl::StatusOr<std::vector<NeedleWindow>> windows =
      MakeNeedleWindows(**source, **tokenizer, needles);
  if (!windows.ok()) return windows.status();
  const absl::StatusOr<std::unique_ptr<SequenceRunner>> runner =
      (*loaded)->MakeRunner(geometry, needles.context);
  if (!runner.ok()) return runner.status();
  const NeedleWindow& first = windows->front();
  RETURN_IF_ERROR(FitConstants(**runner, (*loaded)->rivals(), first.tokens,
                               prefill > 0 ? prefill : first.question, *evaluated));

  ProgressBar bar;
  const absl::StatusOr<std::vector<NeedleScore>> scores =
      EvaluateNeedles(**runner, *windows, *evaluated,
                      {.prefill = prefill,
                       .special_ids = (*tokenizer)->special_ids(),
                       .rivals = &(*loaded)->rivals(),
                       .progress = [&bar](int64_t done, int64_t total) { bar.Show(done, total); }});
  if (!scores.ok()) return scores.status();
  const NeedlesRun run = {.model = runtime.model_dir,
                          .text = text,
                          .backend = (*loaded)->backend().description(),
                          .index = std::string(Name(geometry.index)),
                          .context = needles.context,
                          .prefill = prefill,
                          .keys = needles.keys};
  const std::string report = json ? NeedlesJson(run, *windows, *evaluated, *scores)
                                  : NeedlesTable(run, *windows, *evaluated, *scores);
  std::fputs(report.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddNeedlesCommand(CLI::App& app, absl::Status& status) {
  CLI::App* sub =
      app.add_subcommand("needles", "Compares ways of attending by what they find in a long text");
  auto command = std::make_shared<NeedlesCommand>();
  command->Register(*sub);
  sub->footer(
      "A window is text in which sentences with numbers are hidden, and a question for one of\n"
      "them. A hit: every token of the answer is the most likely one, those before it given.");
  sub->callback([command, &status] { status = command->Run(); });
}

}  // namespace eta
