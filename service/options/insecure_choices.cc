#include "service/options/insecure_choices.h"

#include <utility>

namespace eta {
namespace {

constexpr int kEverybodysSocket = 0666;

using Choices = std::vector<InsecureChoice>;

// Adds the choices about the listeners and about who may call.
void AddOfServer(const ServerOptions& options, Choices& choices) {
  const auto add = [&choices](const char* flag, std::string why) {
    choices.push_back({.flag = flag, .why = std::move(why)});
  };
  if (options.allow_unauthenticated_network) {
    add("--allow_unauthenticated_network",
        "everybody who reaches " + options.listen + " may call the server");
  }
  if (options.allow_plaintext_network) {
    add("--allow_plaintext_network", "prompts, answers and credentials of " + options.listen +
                                         " cross the network in plaintext");
  }
  if (options.socket_mode == kEverybodysSocket) {
    add("--socket_mode", "every user of this host may connect to " + options.listen);
  }
  if (!options.tenant_header.empty() && options.identity.empty()) {
    add("--tenant_header",
        "everybody who reaches the server may name any tenant in " + options.tenant_header);
  }
  if (options.reflection) add("--reflection", "clients may list the API without a credential");
  if (!options.health_listen.empty() && !IsLocalAddress(options.health_listen)) {
    add("--health_listen", "everybody who reaches " + options.health_listen +
                               " may ask in plaintext whether the server is ready");
  }
  for (const std::string& text : options.vllm_listen) {
    add("--vllm_listen", "everybody who reaches " + text.substr(0, text.rfind('=')) +
                             " may generate as tenant " + options.vllm_tenant +
                             " without a credential");
  }
  if (!options.metrics_listen.empty() && !IsLocalAddress(options.metrics_listen)) {
    add("--metrics_listen",
        "everybody who reaches " + options.metrics_listen + " may read the metrics");
  }
  if (options.kv_events.allow_network) {
    add("--allow_network_kv_events", "everybody who reaches " + options.kv_events.publish +
                                         " may read the tokens of prompts, in plaintext");
  }
  if (!options.otlp_endpoint.empty() && !OtlpByTls(options) &&
      !IsLocalAddress(OtlpAddress(options))) {
    add("--otlp_endpoint",
        "spans, which name tenants and profiles, go to " + OtlpAddress(options) + " in plaintext");
  }
}

// The reason why system calls are not filtered; empty if they are, or if nobody expects it.
std::string WhyUnfiltered(const Flags& flags, bool filtered) {
  const SystemCallFilter asked = flags.process.system_call_filter;
  if (asked == SystemCallFilter::kOff) return "an intruder in this process may start programs";
  if (asked == SystemCallFilter::kAuto && flags.GeneratesCode()) {
    return "auto means off for a backend whose driver compiles at run time, so an intruder in this "
           "process may start programs; on forbids that";
  }
  if (filtered || !FiltersByDefault(flags.GeneratesCode())) return "";
  return "the filter is not in force: the kernel or the container does not allow it";
}

}  // namespace

std::vector<InsecureChoice> InsecureChoices(const Flags& flags, bool filtered) {
  Choices choices;
  AddOfServer(flags.server, choices);
  if (flags.engine.allow_nonfinite_weights) {
    choices.push_back(
        {.flag = "--allow_nonfinite_weights", .why = "weights may hold NaN or infinity"});
  }
  if (flags.shows_password) {
    choices.push_back({.flag = "--profile_store",
                       .why = "other users of this host may see its password; use "
                              "--profile_store_file instead"});
  }
  if (flags.process.allow_core_dumps) {
    choices.push_back(
        {.flag = "--allow_core_dumps", .why = "a crash may write prompts and keys to disk"});
  }
  if (std::string why = WhyUnfiltered(flags, filtered); !why.empty()) {
    choices.push_back({.flag = "--system_call_filter", .why = std::move(why)});
  }
  return choices;
}

}  // namespace eta
