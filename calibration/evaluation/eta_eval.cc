// eta-eval compares a backend with one expected decode step, a model with a forced text, and ways
// of attending with each other by perplexity and by what they retrieve. It measures the tables that
// the method is judged by. It also calibrates profiles without a server, measures what an index of
// kind outlier needs, writes a GGUF file as a folder and a folder as a GGUF file, shows the tokens
// of a text and renders chats by a template. Exit codes: 0 done; 1 a result that differs from its
// expectation, or a failed run; 2 bad usage or input.

#include <cstdio>
#include <new>
#include <string>

#include "CLI/CLI.hpp"
#include "calibration/evaluation/commands.h"

namespace {

constexpr int kRunFailed = 1;
constexpr int kBadInput = 2;

// Bad input is an error that another command line or another file would fix.
int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kDataLoss:
      return kBadInput;
    default:
      return kRunFailed;
  }
}

int Run(int argc, char** argv) {
  CLI::App app(
      "Evaluates Elastic Threshold Attention: one kernel step, a forced text, perplexity, "
      "retrieval, tables; calibrates profiles; imports and exports models; shows tokens; renders "
      "chats.");
  app.require_subcommand(1);
  app.footer(
      "Options are given as --name=value. Exit codes: 0 done; 1 a result that differs from its\n"
      "expectation, or a failed run; 2 bad usage or input.");
  absl::Status status;
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
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "eta-eval: %s\n", error.what());
    return kBadInput;
  }
  if (!status.ok()) {
    std::fprintf(stderr, "eta-eval: %s\n", std::string(status.message()).c_str());
  }
  return ExitCode(status);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("eta-eval: memory: the host has none left\n", stderr);
    return kRunFailed;
  }
}
