// etactl: the command line client of ETA Server.
#include <grpcpp/client_context.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"
#include "service/etactl/calibrate/calibrate.h"
#include "service/etactl/commands/log_level.h"
#include "service/etactl/commands/new_key.h"
#include "service/etactl/commands/profiles.h"
#include "service/etactl/commands/stats.h"
#include "service/etactl/commands/tokenize.h"
#include "service/etactl/connection.h"
#include "service/etactl/error.h"
#include "service/etactl/generate/chat.h"
#include "service/etactl/generate/generate.h"
#include "service/etactl/generate/request.h"
#include "service/etactl/server.h"
#include "service/options/parse_error.h"

namespace eta::ctl {
namespace {

struct HealthFlags {
  std::string service;
  double timeout_seconds = 5.0;
};

CLI::App* AddHealthCommand(CLI::App& app, HealthFlags* flags) {
  CLI::App* command = app.add_subcommand("health", "Ask whether the server is serving");
  command->add_option("--service", flags->service,
                      "Name of the health service; default: the server as a whole");
  command->add_option("--timeout", flags->timeout_seconds, "Seconds to wait for the answer")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  return command;
}

int RunHealth(const ServerFlags& server, const HealthFlags& flags) {
  grpc::ClientContext context;
  context.set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::milliseconds(static_cast<int64_t>(flags.timeout_seconds * 1000.0)));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(flags.service);
  grpc::health::v1::HealthCheckResponse response;
  const auto stub = grpc::health::v1::Health::NewStub(Connect(server));
  const grpc::Status status = stub->Check(&context, request, &response);
  if (!status.ok()) {
    std::fprintf(stderr, "etactl: %s\n", DescribeError(status).c_str());
    return ExitCodeOf(status);
  }
  using Health = grpc::health::v1::HealthCheckResponse;
  std::printf("%s\n", Health::ServingStatus_Name(response.status()).c_str());
  return response.status() == Health::SERVING ? kOk : kUnreachable;
}

int Main(int argc, char** argv) {
  CLI::App app("Command line client of ETA Server.", "etactl");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  etactl generate --temperature 0 --max_tokens 40 'The tower was built in'\n"
      "  etactl chat --system 'Answer in one sentence.' 'What is the sea?'\n"
      "  etactl generate --json_schema city.json 'Describe a city.' | jq .population\n"
      "  etactl generate --file report.txt --attention full --json | jq .finished.attention\n"
      "  etactl calibrate legal --samples=texts/legal --target=union-density=0.35\n"
      "  etactl generate --file contract.txt --attention profile:legal\n"
      "  etactl profiles list\n"
      "  etactl tokenize --pieces 'The tower was built in'\n"
      "  etactl stats --watch --layers\n"
      "Exit codes: 0 ok, 1 output not writable, 2 usage, 3 server unreachable or not serving,\n"
      "  4 request refused, 5 no capacity or no time left, 6 server failure, 130 interrupted.");
  ServerFlags server;
  GenerateFlags generate_flags;
  ChatFlags chat_flags;
  CalibrateFlags calibrate_flags;
  ProfilesFlags profiles_flags;
  TokenizeFlags tokenize_flags;
  DetokenizeFlags detokenize_flags;
  StatsFlags stats_flags;
  HealthFlags health_flags;
  LogLevelFlags log_level_flags;
  NewKeyFlags new_key_flags;
  AddServerOptions(app, &server);
  CLI::App* generate = AddGenerateCommand(app, &generate_flags);
  CLI::App* chat = AddChatCommand(app, &chat_flags);
  CLI::App* calibrate = AddCalibrateCommand(app, &calibrate_flags);
  CLI::App* profiles = AddProfilesCommand(app, &profiles_flags);
  CLI::App* tokenize = AddTokenizeCommand(app, &tokenize_flags);
  CLI::App* detokenize = AddDetokenizeCommand(app, &detokenize_flags);
  CLI::App* stats = AddStatsCommand(app, &stats_flags);
  CLI::App* health = AddHealthCommand(app, &health_flags);
  CLI::App* log_level = AddLogLevelCommand(app, &log_level_flags);
  CLI::App* new_key = AddNewKeyCommand(app, &new_key_flags);
  const std::string examples = app.get_footer();
  for (CLI::App* command :
       {generate, chat, calibrate, profiles, tokenize, detokenize, stats, health, log_level}) {
    command->fallthrough()->footer(ServerOptionsHelp(app) + "\n" + examples);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "etactl: %s\n", DescribeParseError(app, error).c_str());
    return kUsage;
  }
  if (generate->parsed()) return RunGenerate(server, generate_flags);
  if (chat->parsed()) return RunChat(server, chat_flags);
  if (calibrate->parsed()) return RunCalibrate(server, calibrate_flags);
  if (profiles->parsed()) return RunProfiles(server, profiles_flags);
  if (tokenize->parsed()) return RunTokenize(server, tokenize_flags);
  if (detokenize->parsed()) return RunDetokenize(server, detokenize_flags);
  if (stats->parsed()) return RunStats(server, stats_flags);
  if (log_level->parsed()) return RunLogLevel(server, log_level_flags);
  if (new_key->parsed()) return RunNewKey(new_key_flags);
  return RunHealth(server, health_flags);
}

}  // namespace
}  // namespace eta::ctl

int main(int argc, char** argv) {
  // gRPC's own messages on a failed connection are silenced, since the call's status has them.
  setenv("GRPC_VERBOSITY", "NONE", /*replace=*/0);  // NOLINT(concurrency-mt-unsafe)
  try {
    return eta::ctl::Main(argc, argv);
  } catch (const eta::ctl::UsageError& error) {
    std::fprintf(stderr, "etactl: %s\n", error.what());
    return eta::ctl::kUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "etactl: %s\n", error.what());
    return eta::ctl::kLocalError;
  }
}
