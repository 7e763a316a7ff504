// The subcommands of eta-train. Each Add function registers one subcommand with its flags. Parsing
// the command line runs the subcommand and leaves its outcome in `status`, which must outlive the
// app. Cancelled: the run was asked to stop, and its checkpoint was written.
#pragma once

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace eta::training {

void AddPretrainCommand(CLI::App& app, absl::Status& status);
void AddAdaptCommand(CLI::App& app, absl::Status& status);

}  // namespace eta::training
