#include "service/flags.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <iostream>
#include <map>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "engine/input_file.h"
#include "service/telemetry/metric_catalogue.h"

namespace eta {
namespace {

using std::chrono::milliseconds;

constexpr char kDescription[] =
    "eta-server: serves a language model over gRPC (eta.v1.EtaService, ProfileService and "
    "StatsService) with Elastic Threshold Attention.\n"
    "Every flag may also be given in a configuration file (--config, lines of `name = value`) or "
    "as "
    "an environment variable (ETA_ and the flag's name in capitals). Command line wins over file, "
    "file over environment.\n"
    "SIGTERM or SIGINT drains, a second one ends running calls at once. Exit codes: 0 drained and "
    "stopped, 2 flags, model or profile store unusable, 3 no device is left that works, 4 the "
    "profile store failed to write and must be opened anew.";

milliseconds ParseMilliseconds(const std::string& text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::ZeroDuration() ||
      duration > absl::Hours(24 * 365)) {
    throw CLI::ValidationError("must be a duration such as 500ms, 60s or 15m: " + text);
  }
  return absl::ToChronoMilliseconds(duration);
}

void AddDuration(CLI::App& app, const std::string& name, milliseconds& value,
                 const std::string& help) {
  app.add_option_function<std::string>(
         name, [&value](const std::string& text) { value = ParseMilliseconds(text); }, help)
      ->type_name("DURATION")
      ->default_str(absl::FormatDuration(absl::FromChrono(value)));
}

template <typename T>
CLI::Option* AddBytes(CLI::App& app, const std::string& name, T& value, const std::string& help) {
  return app.add_option(name, value, help)
      ->transform(CLI::AsSizeValue(false))
      ->type_name("BYTES")
      ->capture_default_str();
}

template <typename T>
CLI::Option* AddCount(CLI::App& app, const std::string& name, T& value, const std::string& help) {
  return app.add_option(name, value, help)
      ->check(CLI::Range(T{1}, std::numeric_limits<T>::max()))
      ->type_name("COUNT")
      ->capture_default_str();
}

void AddCountOrNone(CLI::App& app, const std::string& name, int& value, const std::string& help) {
  app.add_option(name, value, help)
      ->check(CLI::Range(0, std::numeric_limits<int>::max()))
      ->type_name("COUNT")
      ->capture_default_str();
}

template <typename T>
void AddChoice(CLI::App& app, const std::string& name, T& value,
               const std::map<std::string, T>& choices, const std::string& default_name,
               const std::string& help) {
  app.add_option_function<std::string>(
         name, [&value, choices](const std::string& text) { value = choices.at(text); }, help)
      ->check(CLI::IsMember(choices))
      ->default_str(default_name);
}

void AddModelFlags(CLI::App& app, EngineOptions& options) {
  app.add_option("--model", options.model_dir,
                 "Folder with config.json, model.safetensors and tokenizer.model")
      ->required()
      ->check(CLI::ExistingDirectory)
      ->group("Model");
  app.add_option("--model_name", options.model_name,
                 "Name that requests and answers use; default: the folder's name")
      ->group("Model");
  app.add_option_function<std::vector<std::string>>(
         "--sha256",
         [&options](const std::vector<std::string>& pairs) {
           for (const std::string& pair : pairs) {
             const size_t equals = pair.find('=');
             const std::string digest =
                 equals == std::string::npos ? "" : absl::AsciiStrToLower(pair.substr(equals + 1));
             if (equals == 0 || digest.size() != 64 ||
                 digest.find_first_not_of("0123456789abcdef") != std::string::npos) {
               throw CLI::ValidationError("must be FILE=HEX with 64 hexadecimal digits: " + pair);
             }
             options.sha256[pair.substr(0, equals)] = digest;
           }
         },
         "Digest that a file of the model must have, as FILE=HEX; may be given for several files")
      ->group("Model");
  app.add_flag("--allow_nonfinite_weights", options.allow_nonfinite_weights,
               "Load a model whose weights hold NaN or infinity")
      ->group("Model");
}

void AddEngineFlags(CLI::App& app, EngineOptions& options) {
  app.add_option("--backend", options.backend.name, "Backend that computes")
      ->check(CLI::IsMember(BackendNames()))
      ->capture_default_str();
  app.add_option(
         "--device", options.devices,
         "GPUs to use, by index, as in 0,1: each gets a copy of the model and a cache of its "
         "own, and requests are shared out among them")
      ->delimiter(',')
      ->capture_default_str();
  AddChoice<DType>(
      app, "--compute", options.backend.compute,
      {{"bfloat16", DType::kBFloat16}, {"float16", DType::kFloat16}, {"float32", DType::kFloat32}},
      "bfloat16",
      "Type that a GPU computes products in; float32 is exact and slow. The CPU always computes in "
      "float32");
  app.add_option("--threads", options.backend.num_threads,
                 "Threads that compute; 0: one per core that this process may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  AddChoice<WeightFormat>(
      app, "--weights", options.weights,
      {{"native", WeightFormat::kNative}, {"int8", WeightFormat::kInt8}}, "native",
      "Format of weights in memory: as in the checkpoint, or 8-bit integers with one scale per "
      "output (half the bytes, a small loss of precision)");
  AddChoice<DType>(
      app, "--kv_dtype", options.kv_dtype,
      {{"float16", DType::kFloat16},
       {"bfloat16", DType::kBFloat16},
       {"float32", DType::kFloat32},
       {"float8_e4m3", DType::kFloat8E4M3}},
      "float16",
      "Format of the KV cache; float32 doubles its bytes per token, float8_e4m3 halves them at a "
      "loss of precision (not on the CPU)");
  AddChoice<DType>(
      app, "--index_dtype", options.index_dtype,
      {{"float16", DType::kFloat16}, {"int8", DType::kInt8}}, "float16",
      "Format of block records; int8 halves the bytes that screening reads and selects "
      "a little more (not on the CPU)");
  AddBytes(app, "--kv_pool_bytes", options.kv_pool_bytes,
           "Memory of the KV cache, reserved at start on each device; bounds the tokens in flight. "
           "0: 1 GiB, on a GPU --kv_pool_fraction");
  app.add_option("--kv_pool_fraction", options.kv_pool_fraction,
                 "Without --kv_pool_bytes: share of a GPU's memory, as far as the model left it "
                 "free, that becomes the KV cache")
      ->check(CLI::Range(0.01, 1.0))
      ->check([](const std::string& text) {  // the range lets NaN through
        return text.find("nan") == std::string::npos && text.find("NaN") == std::string::npos
                   ? std::string()
                   : std::string("must be a number");
      })
      ->capture_default_str();
  AddCount(app, "--max_running", options.max_running, "Requests in one batch, on each device");
  app.add_option(
         "--max_step_tokens", options.max_step_tokens,
         "Tokens of one step: more prefills faster and holds running streams up for longer; "
         "at least --max_running. 0: 256, on a GPU 2048")
      ->check(CLI::Range(0, 16384))
      ->type_name("COUNT")
      ->capture_default_str();
  app.add_flag("--prefix_cache,!--no-prefix_cache", options.prefix_cache,
               "Share full prompt blocks between requests")
      ->default_str("true");
}

void AddLimitFlags(CLI::App& app, Limits& limits, std::string& tenants) {
  AddCount(app, "--max_context", limits.max_context,
           "Tokens of prompt and answer together; past the trained length the rotary embedding is "
           "scaled");
  AddCount(app, "--max_output_tokens", limits.max_output_tokens, "Largest max_tokens of a request");
  AddBytes(app, "--max_prompt_bytes", limits.max_prompt_bytes, "Longest prompt text");
  AddCount(app, "--max_waiting_requests", limits.max_waiting_requests,
           "Requests that may wait; more are refused with RESOURCE_EXHAUSTED");
  AddCount(app, "--max_waiting_tokens", limits.max_waiting_tokens,
           "Prompt tokens that may wait; more are refused with RESOURCE_EXHAUSTED");
  app.add_option(
         "--tenants", tenants,
         "File of what each tenant may use: calls at a time, token budget, weight, KV cache, "
         "calibrations, stored profiles (JSON). Read again when it changes")
      ->type_name("FILE");
  AddDuration(app, "--default_deadline", limits.default_deadline,
              "Deadline of Generate calls that set none");
  AddDuration(app, "--slow_reader_timeout", limits.max_congestion,
              "A client that reads more slowly than this is cut off");
}

// One line of a file: what must not stand where every user of the host can read it.
absl::StatusOr<std::string> ReadSecret(const std::string& path) {
  constexpr uint64_t kMaxBytes = 4096;
  const auto file = InputFile::Open(path);
  if (!file.ok()) return file.status();
  const auto text = file->ReadAll(kMaxBytes);
  if (!text.ok()) return text.status();
  const std::string line(absl::StripAsciiWhitespace(*text));
  if (line.empty() || line.find('\n') != std::string::npos) {
    return absl::InvalidArgumentError("file " + Quoted(file->name()) + " must hold one line");
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

void AddProfileFlags(CLI::App& app, Flags& flags) {
  ServerOptions& server = flags.server;
  ProfileQuota& quota = flags.profile_store_options.quota;
  app.add_option("--profile_store", flags.profile_store,
                 "Where threshold profiles live: a file of this host (PATH or sqlite:PATH, made if "
                 "it is not there), a database that replicas share (postgresql://...), or a folder "
                 "of profile files that is only read (dir:PATH). Without one there are no profiles "
                 "and Calibrate is refused")
      ->type_name("URL");
  app.add_option(
         "--profile_store_file", flags.profile_store_file,
         "File whose only line is what --profile_store would be: keeps a database's password out "
         "of the command line and the environment")
      ->excludes("--profile_store")
      ->type_name("FILE");
  app.add_option(
         "--default_profile", server.default_profile,
         "Profile of requests that name no attention mode, where their tenant has it: NAME, "
         "NAME@VERSION or NAME@ALIAS")
      ->type_name("PROFILE");
  AddDuration(app, "--profile_staleness", server.profile_staleness,
              "Profiles stay in use for this long while the store cannot be read; then requests "
              "with them are refused with UNAVAILABLE");
  AddCount(app, "--max_calibrations", server.max_calibrations,
           "Calibrations at a time; more are refused with RESOURCE_EXHAUSTED");
  AddCount(app, "--max_tenant_calibrations", server.max_tenant_calibrations,
           "Calibrations of one tenant at a time, where --tenants says nothing else; 0: as many as "
           "--max_calibrations");
  AddCount(app, "--max_calibration_tokens", server.max_calibration_tokens,
           "Tokens of all samples of one calibration");
  AddDuration(app, "--default_calibrate_deadline", server.default_calibrate_deadline,
              "Deadline of Calibrate calls that set none");
  AddBytes(app, "--max_calibrate_message_bytes", server.max_calibrate_message_bytes,
           "Largest request message of Calibrate, which carries the samples");
  AddCount(app, "--profile_quota", quota.versions,
           "Stored profile versions of one tenant, where --tenants says nothing else");
  AddBytes(app, "--profile_quota_bytes", quota.bytes,
           "Bytes of stored profiles of one tenant, likewise");
}

void AddServerFlags(CLI::App& app, ServerOptions& options) {
  app.add_option("--max_memory_fraction", options.memory.max_fraction,
                 "Share of the memory that this process may use (its control group's limit, if it "
                 "has one) above which calls are refused with RESOURCE_EXHAUSTED. A tenth below it "
                 "fewer requests may wait, then no calibration begins; half way above it the "
                 "largest answers are given up")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  app.add_option("--listen", options.listen,
                 "Address: host:port, [IPv6]:port or unix:path; port 0 takes a free one and prints "
                 "it")
      ->type_name("ADDRESS")
      ->capture_default_str();
  AddChoice<int>(
      app, "--socket_mode", options.socket_mode, {{"0600", 0600}, {"0660", 0660}, {"0666", 0666}},
      "0600", "Who may connect where --listen is a Unix socket: its owner, or its group, or all");
  app.add_flag(
      "--allow_unauthenticated_network", options.allow_unauthenticated_network,
      "Listen where other hosts can reach although calls are not authenticated: a proxy in "
      "front must do that");
  app.add_flag("--allow_plaintext_network", options.allow_plaintext_network,
               "Listen where other hosts can reach although calls are not encrypted: a proxy or a "
               "mesh in front must do that");
  app.add_option("--tls_cert", options.tls_cert,
                 "File of this server's certificate and those that lead to its root (PEM): calls "
                 "are encrypted, TLS 1.2 or 1.3. Read again when it changes, as the next two")
      ->type_name("FILE");
  app.add_option("--tls_key", options.tls_key, "File of its key (PEM, not encrypted)")
      ->type_name("FILE");
  app.add_option("--tls_client_ca", options.tls_client_ca,
                 "File of root certificates (PEM): clients must show a certificate of one of them")
      ->type_name("FILE");
  app.add_option("--identity", options.identity,
                 "File of who may call, and in which roles: API keys, issuers of tokens, peers "
                 "(JSON). Read again when it changes")
      ->type_name("FILE");
  app.add_option("--tenant_header", options.tenant_header,
                 "Metadata key in which a proxy names the tenant of a call: one of --identity, or, "
                 "where only this host can reach the server or --allow_unauthenticated_network is "
                 "set, whoever reaches it. Without it and --identity all calls are of tenant "
                 "\"default\"")
      ->type_name("KEY");
  app.add_option("--admin_tenants", options.admin_tenants,
                 "Tenants of the operator among those that --tenant_header names, as in "
                 "ops,oncall: they see what all tenants do (Stats) and set the log level")
      ->delimiter(',')
      ->type_name("NAME");
  app.add_option("--health_listen", options.health_listen,
                 "Another address that answers health checks and nothing else, without TLS, for "
                 "probes of Kubernetes; usually port 8473. Without it there is no such port")
      ->type_name("ADDRESS");
  app.add_flag("--allow_network_metrics", options.allow_network_metrics,
               "Let other hosts reach --metrics_listen");
  app.add_flag("--reflection", options.reflection, "Let clients list the API (gRPC reflection)");
  AddDuration(app, "--drain_delay", options.drain_delay,
              "After a stop signal, readiness fails at once and new calls are still taken for this "
              "long, for load balancers to notice; 5s on Kubernetes");
  AddDuration(app, "--drain_timeout", options.drain_timeout,
              "Then running calls have this long to end");
  AddDuration(app, "--stall_timeout", options.stall_timeout,
              "Liveness fails when requests run and no step ends for this long; longer than "
              "--slow_reader_timeout");
  AddDuration(app, "--self_probe_timeout", options.self_probe_timeout,
              "Liveness fails when this server's new connections are not answered for this long");
  AddBytes(app, "--max_message_bytes", options.max_message_bytes, "Largest request message");
  AddBytes(app, "--max_metadata_bytes", options.max_metadata_bytes, "Largest metadata of a call");
  AddCount(app, "--max_streams_per_connection", options.max_streams_per_connection,
           "Calls at a time on one connection");
  AddCountOrNone(app, "--max_connections", options.max_connections,
                 "Connections at a time; more are closed at once. 0: a quarter of the file "
                 "descriptors that the process may have, at most 4096");
  AddCountOrNone(app, "--max_connections_per_peer", options.max_connections_per_peer,
                 "Connections at a time from one address (IPv6: from one network of 64 bits); 0: "
                 "as many as --max_connections, as is right behind a proxy");
  AddDuration(app, "--keepalive_interval", options.keepalive_interval,
              "Time between pings that find dead clients");
  AddDuration(app, "--keepalive_timeout", options.keepalive_timeout,
              "A client that does not answer a ping for this long is gone");
  AddDuration(app, "--min_client_ping_interval", options.min_client_ping_interval,
              "Clients that ping faster are disconnected");
  AddDuration(app, "--max_connection_idle", options.max_connection_idle,
              "A connection without calls is closed after this");
  AddDuration(app, "--max_connection_age", options.max_connection_age,
              "A connection takes no new calls after this; running ones go on");
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

void AddProcessFlags(CLI::App& app, ProcessOptions& options) {
  AddChoice<SystemCallFilter>(
      app, "--system_call_filter", options.system_call_filter,
      {{"auto", SystemCallFilter::kAuto},
       {"on", SystemCallFilter::kOn},
       {"off", SystemCallFilter::kOff}},
      "auto",
      "Have the kernel refuse what a server never does: start programs, trace processes, open raw "
      "sockets, run memory that it wrote. auto: on, but not on GPUs");
  app.add_flag("--allow_core_dumps", options.allow_core_dumps,
               "Let a crash leave a core file, and debuggers look in: both show prompts and keys");
}

// A database's address may hold a password: its scheme is all that is told of it.
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

// Sets the environment variable and the group of the options that were added since `first`.
void Finish(CLI::App& app, size_t first, const std::string& group) {
  const std::vector<CLI::Option*> options = app.get_options();
  for (size_t i = first; i < options.size(); ++i) {
    options[i]->group(group);
    options[i]->envname("ETA_" + absl::AsciiStrToUpper(options[i]->get_lnames().front()));
  }
}

}  // namespace

ParsedFlags ParseFlags(int argc, char** argv) {
  Flags flags;
  CLI::App app(kDescription, "eta-server");
  app.set_help_flag("--help,-h", "Print this and exit");
  app.set_version_flag("--version", ETA_VERSION, "Print the version and exit");
  bool print_config = false;
  app.add_flag("--print_config", print_config,
               "Print the effective configuration, in the form that --config reads, and exit")
      ->configurable(false);
  app.add_flag_callback(
         "--print_metrics",
         [] {
           std::string text = MetricCatalogueMarkdown();
           text.pop_back();  // the library ends the line
           throw CLI::CallForVersion(text, 0);
         },
         "Print the catalogue of metrics as Markdown and exit")
      ->configurable(false);
  app.set_config("--config", "", "Configuration file")->envname("ETA_CONFIG");
  app.allow_config_extras(CLI::config_extras_mode::error);

  size_t first = app.get_options().size();
  AddModelFlags(app, flags.engine);
  Finish(app, first, "Model");
  first = app.get_options().size();
  AddEngineFlags(app, flags.engine);
  Finish(app, first, "Engine");
  first = app.get_options().size();
  AddLimitFlags(app, flags.engine.limits, flags.tenants);
  Finish(app, first, "Limits of requests");
  first = app.get_options().size();
  AddProfileFlags(app, flags);
  Finish(app, first, "Profiles");
  first = app.get_options().size();
  AddServerFlags(app, flags.server);
  Finish(app, first, "Server");
  first = app.get_options().size();
  AddProcessFlags(app, flags.process);
  Finish(app, first, "Process");
  first = app.get_options().size();
  AddMetricsFlags(app, flags);
  Finish(app, first, "Metrics");
  first = app.get_options().size();
  AddLogFlags(app, flags.log);
  Finish(app, first, "Log");

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // help or version
    return {.flags = {}, .exit_code = app.exit(request)};
  } catch (const CLI::ParseError& error) {
    std::cerr << "eta-server: " << error.what() << " (see --help)\n";
    return {.flags = {}, .exit_code = kExitBadStart};
  }
  if (print_config) {
    std::cout << app.config_to_str(/*default_also=*/true, /*write_description=*/false);
    return {};
  }
  if (!flags.profile_store_file.empty()) {
    auto url = ReadSecret(flags.profile_store_file);
    if (!url.ok()) {
      std::cerr << "eta-server: --profile_store_file: " << url.status().message() << "\n";
      return {.flags = {}, .exit_code = kExitBadStart};
    }
    flags.profile_store = *std::move(url);
  }
  flags.given = Given(app);
  flags.shows_password =
      flags.given.contains("profile_store") && HoldsPassword(flags.profile_store);
  return {.flags = std::move(flags), .exit_code = 0};
}

}  // namespace eta
