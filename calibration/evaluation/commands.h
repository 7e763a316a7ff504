// The subcommands of eta-eval: flags, and what is done with them. Each Add call registers one
// subcommand; parsing the command line runs it and leaves its outcome in `status`, which must
// outlive the app. Aborted stands for a result that differs from its expectation.
#pragma once

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace eta {

void AddKernelCaseCommand(CLI::App& app, absl::Status& status);
void AddScoreCommand(CLI::App& app, absl::Status& status);
void AddPerplexityCommand(CLI::App& app, absl::Status& status);
void AddCalibrateCommand(CLI::App& app, absl::Status& status);

}  // namespace eta
