#include "service/options/flags.h"

#include <iostream>
#include <map>
#include <sstream>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/files/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/base/threads/watched_files.h"
#include "engine/chat/chat_template.h"
#include "service/options/flag_groups.h"
#include "service/options/parse_error.h"
#include "service/telemetry/metric_catalogue.h"

namespace eta {
namespace {

constexpr char kDescription[] =
    "eta-server serves a language model over gRPC (eta.v1.EtaService, ProfileService and "
    "AdminService) with Elastic Threshold Attention.\n"
    "Every flag may also stand in a configuration file (--config, lines of `name = value`) or in "
    "an environment variable (ETA_ and the flag's name in capitals). The command line wins over "
    "the file, the file over the environment.\n"
    "SIGTERM or SIGINT drains the server; a second signal ends running calls at once. Exit codes: "
    "0 drained and stopped; 2 flags, model or profile store unusable; 3 no device works; 4 the "
    "profile store failed to write and must be opened anew; 5 the host is out of memory; 6 a step "
    "did not end.";

// Reads the only line of a file. The file must not be readable by every user of the host.
absl::StatusOr<std::string> ReadSecret(const std::string& flag, const std::string& path) {
  constexpr size_t kMaxBytes = 4096;
  ASSIGN_OR_RETURN(const auto text,
                   ReadWhole({.name = flag, .path = path, .secret = true}, kMaxBytes));
  const std::string line(absl::StripAsciiWhitespace(text));
  if (line.empty() || line.find('\n') != std::string::npos) {
    return absl::InvalidArgumentError(flag + ": must hold one line");
  }
  return line;
}

// postgresql://USER:PASSWORD@... or ...?password=...
bool HoldsPassword(const std::string& url) {
  const size_t begin = url.find("://");
  if (begin == std::string::npos) return false;
  const std::string authority =
      url.substr(begin + 3, url.find_first_of("/?", begin + 3) - begin - 3);
  const size_t at = authority.rfind('@');
  return (at != std::string::npos && authority.substr(0, at).find(':') != std::string::npos) ||
         url.find("password=", begin) != std::string::npos;
}

// A database's address may hold a password, so only its scheme is shown.
std::string WithoutSecrets(const std::string& value) {
  const size_t scheme = value.find("://");
  return scheme == std::string::npos ? value : value.substr(0, scheme + 3) + "...";
}

std::map<std::string, std::string> Given(const CLI::App& app) {
  std::map<std::string, std::string> given;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    given[option->get_lnames().front()] = WithoutSecrets(absl::StrJoin(option->results(), ","));
  }
  return given;
}

// Adds the flags of `add` under the heading `group` of --help, each with its environment variable.
template <typename Add>
void AddGroup(CLI::App& app, const std::string& group, const Add& add) {
  const size_t first = app.get_options().size();
  add();
  const std::vector<CLI::Option*> options = app.get_options();
  for (size_t i = first; i < options.size(); ++i) {
    options[i]->group(group);
    options[i]->envname("ETA_" + absl::AsciiStrToUpper(options[i]->get_lnames().front()));
  }
}

// The effective configuration without empty texts. All texts are empty unless they are given.
// Reading such a line back would count as giving the flag, and some flags exclude others.
std::string EffectiveConfig(const CLI::App& app) {
  std::istringstream lines(app.config_to_str(/*default_also=*/true, /*write_description=*/false));
  std::string config;
  for (std::string line; std::getline(lines, line);) {
    if (!absl::EndsWith(line, "=\"\"")) absl::StrAppend(&config, line, "\n");
  }
  return config;
}

}  // namespace

ParsedFlags ParseFlags(int argc, char** argv) {
  Flags flags;
  CLI::App app(kDescription, "eta-server");
  app.set_help_flag("--help,-h", "Print this and exit");
  app.set_version_flag("--version", ETA_VERSION, "Print the version and exit");
  bool print_config = false;
  app.add_flag("--print_config", print_config,
               "Print the effective configuration, in the form that --config reads, and exit. The "
               "exit code is 2 if the server would refuse its flags of addresses and calls")
      ->configurable(false);
  app.add_flag_callback(
         "--print_metrics",
         [] {
           std::string text = MetricCatalogueMarkdown();
           text.pop_back();  // the library ends the text with a line end
           throw CLI::CallForVersion(text, 0);
         },
         "Print the catalogue of metrics as Markdown and exit")
      ->configurable(false);
  app.set_config("--config", "", "File of flags, a line of `name = value` for each. Default: none")
      ->envname("ETA_CONFIG");
  app.allow_config_extras(CLI::config_extras_mode::error);

  AddGroup(app, "Model", [&] { AddModelFlags(app, flags.engine, flags.chat_template); });
  AddGroup(app, "Engine", [&] { AddEngineFlags(app, flags.engine); });
  AddGroup(app, "Formats of answers",
           [&] { AddFormatFlags(app, flags.engine.formats, flags.format_helper); });
  AddGroup(app, "Limits of requests",
           [&] { AddLimitFlags(app, flags.engine.limits, flags.tenants); });
  AddGroup(app, "Profiles", [&] { AddProfileFlags(app, flags); });
  AddGroup(app, "Server", [&] { AddServerFlags(app, flags.server); });
  AddGroup(app, "Gateways", [&] { AddGatewayFlags(app, flags.server); });
  AddGroup(app, "Process", [&] { AddProcessFlags(app, flags); });
  AddGroup(app, "Metrics", [&] { AddMetricsFlags(app, flags); });
  AddGroup(app, "KV events", [&] { AddKvEventFlags(app, flags.server.kv_events); });
  AddGroup(app, "Traces", [&] { AddTraceFlags(app, flags.server); });
  AddGroup(app, "Log", [&] { AddLogFlags(app, flags.log); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help or --version
    return {.flags = {}, .exit_code = app.exit(request)};
  } catch (const CLI::ParseError& error) {
    std::cerr << "eta-server: " << DescribeParseError(app, error) << "\n";
    return {.flags = {}, .exit_code = kExitBadStart};
  }
  if (print_config) {
    std::cout << EffectiveConfig(app);
    const absl::Status checked = CheckOptions(flags.server, flags.engine.limits);
    if (checked.ok()) return {};
    std::cerr << "eta-server: " << checked.message() << "\n";
    return {.flags = {}, .exit_code = kExitBadStart};
  }
  flags.given = Given(app);
  flags.shows_password =
      flags.given.contains("profile_store") && HoldsPassword(flags.profile_store);
  return {.flags = std::move(flags), .exit_code = 0};
}

absl::Status ReadSecrets(Flags& flags) {
  if (flags.profile_store_file.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(flags.profile_store,
                   ReadSecret("--profile_store_file", flags.profile_store_file));
  return absl::OkStatus();
}

// As files of a model are read: not if every user of the host may write it.
absl::Status ReadChatTemplate(Flags& flags) {
  if (flags.chat_template.empty()) return absl::OkStatus();
  const auto file = InputFile::Open(flags.chat_template);
  auto source = file.ok() ? file->ReadAll(ChatTemplateLimits::kSourceBytes)
                          : absl::StatusOr<std::string>(file.status());
  if (!source.ok()) {
    return absl::Status(source.status().code(),
                        absl::StrCat("--chat_template: ", std::string(source.status().message())));
  }
  flags.engine.chat_template = *std::move(source);
  return absl::OkStatus();
}

}  // namespace eta
