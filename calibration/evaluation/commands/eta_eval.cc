// eta-eval compares a backend with one expected decode step, a model with a forced text, and ways
// of attending with each other by perplexity and by what they retrieve. It measures the tables that
// the method is judged by, and writes the proof that an operator asks for. It also calibrates
// profiles without a server, measures what an index of kind outlier needs, writes a GGUF file as a
// folder and a folder as a GGUF file, shows the tokens of a text and renders chats by a template.
// Exit codes: 0 done; 1 a result that differs from its expectation, a proof that fails, or a failed
// run; 2 bad usage or input.

#include "CLI/CLI.hpp"
#include "calibration/evaluation/commands/commands.h"
#include "calibration/evaluation/runtime/program.h"

namespace {

void AddCommands(CLI::App& app, absl::Status& status) {
  app.footer(
      "Options are given as --name=value. Exit codes: 0 done; 1 a result that differs from its\n"
      "expectation, a proof that fails, or a failed run; 2 bad usage or input.");
  eta::AddKernelCaseCommand(app, status);
  eta::AddScoreCommand(app, status);
  eta::AddPerplexityCommand(app, status);
  eta::AddNeedlesCommand(app, status);
  eta::AddIndexMetricCommand(app, status);
  eta::AddCalibrateCommand(app, status);
  eta::AddImportCommand(app, status);
  eta::AddExportGgufCommand(app, status);
  eta::AddTokenizeCommand(app, status);
  eta::AddRenderCommand(app, status);
  eta::AddTableCommand(app, status);
  eta::AddReportCommand(app, status);
  eta::AddProveCommand(app, status);
}

}  // namespace

int main(int argc, char** argv) {
  return eta::RunProgram(
      "eta-eval",
      "Evaluates Elastic Threshold Attention: one kernel step, a forced text, perplexity, "
      "retrieval, tables, proofs; calibrates profiles; imports and exports models; shows tokens; "
      "renders chats.",
      AddCommands, argc, argv);
}
