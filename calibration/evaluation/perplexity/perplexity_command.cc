// eta-eval perplexity: compares ways of attending over the same windows of a text.

#include <cstdio>
#include <vector>

#include "CLI/CLI.hpp"
#include "calibration/evaluation/attention/attention_comparison.h"
#include "calibration/evaluation/commands/commands.h"
#include "calibration/evaluation/commands/progress_bar.h"
#include "calibration/evaluation/perplexity/perplexity.h"
#include "calibration/evaluation/perplexity/perplexity_report.h"
#include "calibration/evaluation/runtime/number_flags.h"
#include "calibration/evaluation/runtime/program.h"
#include "calibration/evaluation/text/windows.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

struct PerplexityCommand {
  ComparisonFlags flags;
  int32_t windows = 0;
  bool by_document = false;
  bool recall = true;
  double mass = 0.0;
  double kl = 0.0;

  void Register(CLI::App& command);
  absl::Status Run() const;
};

void PerplexityCommand::Register(CLI::App& command) {
  flags.Register(command,
                 "Text to predict: .txt, or .jsonl with a field 'text' per line; either may be "
                 "compressed as .xz");
  command.add_option("--context", flags.context, "Predictions of one window")
      ->required()
      ->check(CLI::Range(1, kMaxComparedContext));
  AddCount(command, "--prefill", flags.prefill, 0, kMaxComparedContext,
           "Rows of a window that are fed as a prompt and not scored; the rest is decoded token by "
           "token");
  AddCount(command, "--windows", windows, 0, 1 << 20,
           "Windows to take at most; 0: all that the text fills");
  command.add_flag(
      "--by_document", by_document,
      "Windows as calibration's sequences: each in one document, a begin-of-text token "
      "in front, evenly spaced over the text");
  command.add_option(
      "--recall", recall,
      "Measure the share of above-threshold keys that were admitted (reads every key) [true]");
  AddReal(command, "--mass", mass, 0.0, 1.0,
          "Measure on this share of the decode rows what full attention would have had: mass kept "
          "and output error (reads every key of them once more)");
  AddReal(
      command, "--kl", kl, 0.0, 1.0,
      "Measure on this share of the scored rows the divergence of the next token's distribution "
      "from that of the first --attention (keeps the logits of these rows in memory)");
}

absl::Status PerplexityCommand::Run() const {
  ASSIGN_OR_RETURN(const auto loaded, AttentionComparison::Load(flags));
  AttentionComparison& comparison = *loaded;
  const auto read = by_document ? ReadDocumentWindows : ReadWindows;
  ASSIGN_OR_RETURN(
      const std::vector<std::vector<int32_t>> cut,
      read(comparison.text(), comparison.tokenizer(), flags.context, windows, kMaxTextTokens));
  ASSIGN_OR_RETURN(const auto runners,
                   comparison.MakeRunners(flags.context, cut.front(), flags.prefill));

  ProgressBar bar;
  ASSIGN_OR_RETURN(const std::vector<AttentionScore> scores,
                   EvaluatePerplexity(runners->Source(), cut, comparison.attentions(),
                                      {.prefill = flags.prefill,
                                       .recall = recall,
                                       .special_ids = comparison.tokenizer().special_ids(),
                                       .rivals = &comparison.rivals(),
                                       .mass = mass,
                                       .kl = kl,
                                       .progress = [&bar](int64_t done, int64_t total) {
                                         bar.Show(done, total);
                                       }}));
  const auto report = flags.json ? PerplexityJson : PerplexityTable;
  std::fputs(report(flags, comparison, std::ssize(cut), scores).c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddPerplexityCommand(CLI::App& app, absl::Status& status) {
  AddCommand<PerplexityCommand>(app, status, "perplexity",
                                "Compares ways of attending by perplexity, density and recall")
      ->footer(
          "The text's documents follow one another, each between begin- and end-of-text, and are "
          "cut\n"
          "into windows of --context predictions. Densities are means over scored rows, layers "
          "and\n"
          "heads of tokens attended (head) and tokens read per KV head (union) over the row's "
          "keys.\n"
          "Full attention is gated like the rest and prunes nothing: its densities are 1. "
          "Intervals\n"
          "are 95 %, over windows; fewer than 4 have none.");
}

}  // namespace eta
