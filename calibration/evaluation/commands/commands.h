// The subcommands of eta-eval. Each Add function registers one subcommand with its flags. Parsing
// the command line runs the subcommand and leaves its outcome in `status`, which must outlive the
// app. Aborted means that a result differs from its expectation.
#pragma once

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace eta {

void AddKernelCaseCommand(CLI::App& app, absl::Status& status);
void AddScoreCommand(CLI::App& app, absl::Status& status);
void AddPerplexityCommand(CLI::App& app, absl::Status& status);
void AddNeedlesCommand(CLI::App& app, absl::Status& status);
void AddIndexMetricCommand(CLI::App& app, absl::Status& status);
void AddCalibrateCommand(CLI::App& app, absl::Status& status);
void AddImportCommand(CLI::App& app, absl::Status& status);
void AddExportGgufCommand(CLI::App& app, absl::Status& status);
void AddTokenizeCommand(CLI::App& app, absl::Status& status);
void AddRenderCommand(CLI::App& app, absl::Status& status);
void AddTableCommand(CLI::App& app, absl::Status& status);
void AddProveCommand(CLI::App& app, absl::Status& status);
void AddReportCommand(CLI::App& app, absl::Status& status);

}  // namespace eta
