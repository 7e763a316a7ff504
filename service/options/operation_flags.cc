// Flags of what the process may do, and of what it reports to its operator: hardening, metrics,
// traces, log.
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
      "Kernel filter that refuses what a server never does: start programs, trace processes, open "
      "raw sockets, run memory that it wrote. auto means on, but off on GPUs");
  app.add_flag("--allow_core_dumps", options.allow_core_dumps,
               "A crash may leave a core file, debuggers may attach. Both show prompts and keys");
}

void AddMetricsFlags(CLI::App& app, Flags& flags) {
  TelemetryOptions& options = flags.telemetry;
  app.add_option("--metrics_listen", flags.server.metrics_listen,
                 "Address, as host:port, that serves metrics for Prometheus at /metrics; usually "
                 "port 8472. Port 0 takes a free port and prints it. Default: none")
      ->type_name("ADDRESS");
  app.add_option("--metrics_profiles", options.profiles,
                 "Profiles with metrics of their own, as in legal,code; all others count as "
                 "\"other\". Default: the --metrics_label_limit that requests used last")
      ->delimiter(',')
      ->type_name("NAME");
  app.add_option("--metrics_tenants", options.tenants,
                 "Tenants with metrics of their own, as in acme,trial; all others count as "
                 "\"other\". Default: the --metrics_label_limit that sent requests last")
      ->delimiter(',')
      ->type_name("NAME");
  app.add_option("--metrics_label_limit", options.label_limit,
                 "Largest number of profiles, and of tenants, with metrics of their own where no "
                 "names are given")
      ->check(CLI::Range(0, TelemetryOptions::kMaxLabels))
      ->type_name("COUNT")
      ->capture_default_str();
  AddChoice<bool>(app, "--metrics_names", options.vllm_names, {{"eta", false}, {"vllm", true}},
                  "eta",
                  "Names of the series that endpoint pickers of inference gateways scrape: eta are "
                  "the server's own, vllm adds those that pickers know");
}

void AddKvEventFlags(CLI::App& app, KvEventOptions& options) {
  app.add_option(
         "--kv_events", options.publish,
         "Address, as tcp://host:port, where routers read over ZeroMQ what the prefix cache "
         "stores and removes; usually tcp://*:5557. Port 0 takes a free port and prints "
         "it. Default: none")
      ->type_name("ADDRESS");
  app.add_option("--kv_events_replay", options.replay,
                 "Address, as tcp://host:port, where they ask again for events that they missed. "
                 "Default: none")
      ->type_name("ADDRESS");
  app.add_option("--kv_events_topic", options.topic,
                 "First frame of each message; llm-d wants kv@POD@MODEL. Default: empty")
      ->type_name("TEXT");
  AddChoice<KvEventEncoding>(
      app, "--kv_events_encoding", options.encoding,
      {{"map", KvEventEncoding::kMap}, {"array", KvEventEncoding::kArray}}, "map",
      "What an event is in MessagePack: a map, as of vLLM after 0.23, or an array, as before, for "
      "readers that know no other");
  app.add_flag(
      "--allow_network_kv_events", options.allow_network,
      "Other hosts may reach --kv_events and --kv_events_replay. Whoever does may read the "
      "tokens of prompts");
}

void AddTraceFlags(CLI::App& app, ServerOptions& options) {
  app.add_option("--otlp_endpoint", options.otlp_endpoint,
                 "Collector that spans of calls go to, by OTLP over gRPC: http://HOST:PORT in "
                 "plaintext or https://HOST:PORT over TLS; usually port 4317. Default: none, and "
                 "there are no spans")
      ->type_name("URL");
  AddShare(app, "--otlp_sampling", options.otlp_sampling, 1.0,
           "Share of the calls without a traceparent that have spans, 0 to 1. Calls with one have "
           "them if it says that it is sampled",
           /*least=*/0.0);
}

void AddLogFlags(CLI::App& app, LogOptions& options) {
  AddChoice<LogLevel>(app, "--log_level", options.level,
                      {{"debug", LogLevel::kDebug},
                       {"info", LogLevel::kInfo},
                       {"warning", LogLevel::kWarning},
                       {"error", LogLevel::kError}},
                      "info",
                      "Lowest level of the events that are written to standard error. `etactl "
                      "log-level` changes it while the server runs");
  // A reader at a terminal is a person.
  options.format = isatty(options.fd) == 1 ? LogFormat::kText : LogFormat::kJson;
  app.add_option_function<std::string>(
         "--log_format",
         [&options](const std::string& text) {
           if (text != "auto")
             options.format = text == "json" ? LogFormat::kJson : LogFormat::kText;
         },
         "Format of the log, one line per event: JSON, or text for people. auto means text on a "
         "terminal and JSON elsewhere")
      ->check(CLI::IsMember({"auto", "json", "text"}))
      ->default_str("auto");
}

}  // namespace eta
