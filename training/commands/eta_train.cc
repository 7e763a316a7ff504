// eta-train makes models that the server runs with dynamic thresholds: from scratch, or out of a
// model that was trained without them. Exit codes: 0 done; 1 a failed run; 2 bad usage or input;
// 3 stopped by a signal, after a checkpoint was written; 4 the model is written, and does not keep
// the bounds that were asked for.

#include "CLI/CLI.hpp"
#include "calibration/evaluation/runtime/program.h"
#include "training/commands/commands.h"
#include "training/commands/stop_request.h"

namespace {

void AddCommands(CLI::App& app, absl::Status& status) {
  app.fallthrough();
  app.set_config(
      "--config", "",
      "File of flags: a line [pretrain] or [adapt], then a line `name = value` for each");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.footer(
      "Options are given as --name=value. Exit codes: 0 done; 1 a failed run; 2 bad usage or\n"
      "input; 3 stopped by SIGTERM or Ctrl-C, after a checkpoint was written; 4 the model is\n"
      "written, but is not shown to keep both bounds of adapt.");
  eta::training::AddPretrainCommand(app, status);
  eta::training::AddAdaptCommand(app, status);
}

}  // namespace

int main(int argc, char** argv) {
  eta::training::WatchForStopRequests();
  return eta::RunProgram("eta-train",
                         "Trains models with Elastic Threshold Attention, or adapts models to it.",
                         AddCommands, argc, argv);
}
