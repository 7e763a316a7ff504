#include "service/etactl/commands/log_level.h"

#include <grpcpp/client_context.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "eta/v1/admin.grpc.pb.h"
#include "service/etactl/connection.h"
#include "service/etactl/error.h"

namespace eta::ctl {
namespace {

constexpr char kPrefix[] = "LOG_LEVEL_";

std::string ReadableLevel(v1::LogLevel level) {
  const std::string& name = v1::LogLevel_Name(level);
  return absl::AsciiStrToLower(absl::StripPrefix(name, kPrefix));
}

}  // namespace

CLI::App* AddLogLevelCommand(CLI::App& app, LogLevelFlags* flags) {
  CLI::App* command =
      app.add_subcommand("log-level", "Set which events the server writes to its log");
  command->add_option("--timeout", flags->timeout_seconds, "Seconds to wait for the answer")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  command->add_option("level", flags->level, "Events of this level and above")
      ->required()
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  return command;
}

int RunLogLevel(const ServerFlags& server, const LogLevelFlags& flags) {
  v1::SetLogLevelRequest request;
  v1::LogLevel level;
  if (v1::LogLevel_Parse(kPrefix + absl::AsciiStrToUpper(flags.level), &level)) {
    request.set_level(level);
  }
  grpc::ClientContext context;
  SetDeadline(flags.timeout_seconds, &context);
  v1::SetLogLevelResponse response;
  const auto stub = v1::AdminService::NewStub(Connect(server));
  const grpc::Status status = stub->SetLogLevel(&context, request, &response);
  if (!status.ok()) return Report(status, /*json=*/false);
  std::printf("%s (was %s)\n", flags.level.c_str(),
              ReadableLevel(response.previous_level()).c_str());
  return kOk;
}

}  // namespace eta::ctl
