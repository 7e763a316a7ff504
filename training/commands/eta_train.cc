// eta-train makes models that the server runs with dynamic thresholds: from scratch, or out of a
// model that was trained without them. Exit codes: 0 done; 1 a failed run; 2 bad usage or input;
// 3 stopped by a signal, after a checkpoint was written.

#include <cstdio>
#include <new>
#include <string>

#include "CLI/CLI.hpp"
#include "training/commands/commands.h"
#include "training/commands/stop_request.h"

namespace {

constexpr int kRunFailed = 1;
constexpr int kBadInput = 2;
constexpr int kStopped = 3;

// Bad input is an error that another command line or another file would fix.
int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kCancelled:
      return kStopped;
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
  CLI::App app("Trains models with Elastic Threshold Attention, or adapts models to it.");
  app.require_subcommand(1);
  app.fallthrough();
  app.set_config(
      "--config", "",
      "File of flags: a line [pretrain] or [adapt], then a line `name = value` for each");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.footer(
      "Options are given as --name=value. Exit codes: 0 done; 1 a failed run; 2 bad usage or\n"
      "input; 3 stopped by SIGTERM or Ctrl-C, after a checkpoint was written.");
  absl::Status status;
  eta::training::AddPretrainCommand(app, status);
  eta::training::AddAdaptCommand(app, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "eta-train: %s\n", error.what());
    return kBadInput;
  }
  if (!status.ok()) {
    std::fprintf(stderr, "eta-train: %s\n", std::string(status.message()).c_str());
  }
  return ExitCode(status);
}

}  // namespace

int main(int argc, char** argv) {
  eta::training::WatchForStopRequests();
  try {
    return Run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("eta-train: memory: the host has none left\n", stderr);
    return kRunFailed;
  }
}
