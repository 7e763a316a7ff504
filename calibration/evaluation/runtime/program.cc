#include "calibration/evaluation/runtime/program.h"

#include <cstdio>
#include <new>

#include "absl/strings/cord.h"

namespace eta {
namespace {

constexpr int kRunFailed = 1;
constexpr int kBadInput = 2;
constexpr int kStopped = 3;
constexpr int kNotAsAsked = 4;

constexpr char kNotAsAskedUrl[] = "eta/not_as_asked";

// Bad input is an error that another command line or another file would fix.
int ExitCode(const absl::Status& status) {
  if (status.GetPayload(kNotAsAskedUrl)) return kNotAsAsked;
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

int ParseAndRun(const std::string& name, const std::string& description, const AddCommands& add,
                int argc, char** argv) {
  CLI::App app(description);
  app.require_subcommand(1);
  absl::Status status;
  add(app, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
    return kBadInput;
  }
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), std::string(status.message()).c_str());
  }
  return ExitCode(status);
}

}  // namespace

absl::Status NotAsAsked(const std::string& message) {
  absl::Status status = absl::FailedPreconditionError(message);
  status.SetPayload(kNotAsAskedUrl, absl::Cord());
  return status;
}

int RunProgram(const std::string& name, const std::string& description, const AddCommands& add,
               int argc, char** argv) {
  try {
    return ParseAndRun(name, description, add, argc, argv);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: memory: the host has none left\n", name.c_str());
    return kRunFailed;
  }
}

}  // namespace eta
