// eta-eval needles: compares ways of attending by what they find in long windows.

#include <cstdio>
#include <vector>

#include "CLI/CLI.hpp"
#include "calibration/evaluation/attention/attention_comparison.h"
#include "calibration/evaluation/commands/commands.h"
#include "calibration/evaluation/commands/progress_bar.h"
#include "calibration/evaluation/needles/needle_report.h"
#include "calibration/evaluation/runtime/number_flags.h"
#include "calibration/evaluation/runtime/program.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

struct NeedlesCommand {
  ComparisonFlags flags;
  NeedleOptions needles;

  void Register(CLI::App& command);
  absl::Status Run() const;
};

void NeedlesCommand::Register(CLI::App& command) {
  flags.Register(command, "Text that the needles are hidden in: .txt or .jsonl, also .xz");
  command.add_option("--context", flags.context, "Tokens of one window")
      ->required()
      ->check(CLI::Range(64, kMaxComparedContext));
  AddCount(command, "--windows", needles.windows, 1, 1 << 12,
           "Windows, with the needle ever deeper");
  AddCount(command, "--keys", needles.keys, 1, kMaxNeedles,
           "Needles in a window, of which one is asked for");
  command.add_option("--seed", needles.seed, "Of the needles' names and numbers")
      ->capture_default_str();
  AddCount(command, "--prefill", flags.prefill, 0, kMaxComparedContext,
           "Rows of a window that are fed as a prompt; later ones select blocks; 0: all before the "
           "question");
}

absl::Status NeedlesCommand::Run() const {
  ASSIGN_OR_RETURN(const auto loaded, AttentionComparison::Load(flags));
  AttentionComparison& comparison = *loaded;
  NeedleOptions options = needles;
  options.context = flags.context;
  ASSIGN_OR_RETURN(const std::vector<NeedleWindow> windows,
                   ReadNeedleWindows(comparison.text(), comparison.tokenizer(), options));
  const NeedleWindow& first = windows.front();
  ASSIGN_OR_RETURN(const auto runners,
                   comparison.MakeRunners(flags.context, first.tokens,
                                          flags.prefill > 0 ? flags.prefill : first.question));

  ProgressBar bar;
  ASSIGN_OR_RETURN(const std::vector<NeedleScore> scores,
                   EvaluateNeedles(runners->Source(), windows, comparison.attentions(),
                                   {.prefill = flags.prefill,
                                    .special_ids = comparison.tokenizer().special_ids(),
                                    .rivals = &comparison.rivals(),
                                    .progress = [&bar](int64_t done, int64_t total) {
                                      bar.Show(done, total);
                                    }}));
  const auto report = flags.json ? NeedlesJson : NeedlesTable;
  std::fputs(report(flags, comparison, needles.keys, windows, scores).c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddNeedlesCommand(CLI::App& app, absl::Status& status) {
  AddCommand<NeedlesCommand>(app, status, "needles",
                             "Compares ways of attending by what they find in a long text")
      ->footer(
          "A window is text in which sentences with numbers are hidden, and a question for one of\n"
          "them. A hit: every token of the answer is the most likely one, those before it given.");
}

}  // namespace eta
