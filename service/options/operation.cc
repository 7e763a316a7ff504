// Flags of what the process may do and what it tells its operator: hardening, metrics, log.
#include <unistd.h>

#include "service/options/flag_groups.h"
#include "service/options/flag_kinds.h"

namespace eta {

void AddProcessFlags(CLI::App& app, Flags& flags) {
  ProcessOptions& options = flags.process;
  AddChoice<SystemCallFilter>(
      app, "--system_call_filter", options.system_call_filter,
      {{"auto", SystemCallFilter::kAuto},
       {"on", SystemCallFilter::kOn},
       {"off", SystemCallFilter::kOff}},
      "auto",
      "Have the kernel refuse what a server never does: start programs, trace processes, open raw "
      "sockets, run anonymous memory that it wrote. auto: on, but not on GPUs");
  app.add_flag("--allow_core_dumps", options.allow_core_dumps,
               "Let a crash leave a core file, and debuggers look in: both show prompts and keys");
  AddCountOrAuto(app, "--step_cpus", flags.step_cpus,
                 "CPUs on which no calls are answered, so that a flood of them does not hold up "
                 "running answers. auto: one for each GPU, a quarter of all at most");
}

void AddMetricsFlags(CLI::App& app, Flags& flags) {
  TelemetryOptions& options = flags.telemetry;
  app.add_option("--metrics_listen", flags.server.metrics_listen,
                 "Serve metrics for Prometheus at http://ADDRESS/metrics: host:port, usually port "
                 "8472; port 0 takes a free one and prints it. Without it there is no such port")
      ->type_name("ADDRESS");
  app.add_option("--metrics_profiles", options.profiles,
                 "Profiles with metrics of their own, as in legal,code; all others count as "
                 "\"other\". Default: the first --metrics_label_limit ones that requests use")
      ->delimiter(',')
      ->type_name("NAME");
  app.add_option("--metrics_tenants", options.tenants, "Likewise, tenants")
      ->delimiter(',')
      ->type_name("NAME");
  app.add_option("--metrics_label_limit", options.label_limit,
                 "Profiles, and tenants, with metrics of their own where no names are given")
      ->check(CLI::Range(0, TelemetryOptions::kMaxLabels))
      ->type_name("COUNT")
      ->capture_default_str();
}

void AddLogFlags(CLI::App& app, LogOptions& options) {
  AddChoice<LogLevel>(app, "--log_level", options.level,
                      {{"debug", LogLevel::kDebug},
                       {"info", LogLevel::kInfo},
                       {"warning", LogLevel::kWarning},
                       {"error", LogLevel::kError}},
                      "info",
                      "Events of this level and above are written to standard error; `etactl "
                      "log-level` changes it while the server runs");
  // Whoever reads a terminal is a person.
  options.format = isatty(options.fd) == 1 ? LogFormat::kText : LogFormat::kJson;
  app.add_option_function<std::string>(
         "--log_format",
         [&options](const std::string& text) {
           if (text != "auto")
             options.format = text == "json" ? LogFormat::kJson : LogFormat::kText;
         },
         "One line per event: JSON, or text for people; auto is text on a terminal, else JSON")
      ->check(CLI::IsMember({"auto", "json", "text"}))
      ->default_str("auto");
}

}  // namespace eta
