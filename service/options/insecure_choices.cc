#include "service/options/insecure_choices.h"

#include <utility>

namespace eta {
namespace {

constexpr int kEverybodysSocket = 0666;

using Choices = std::vector<InsecureChoice>;

// Of the listeners and of who may call.
void AddOfServer(const ServerOptions& options, Choices& choices) {
  const auto add = [&choices](const char* flag, std::string why) {
    choices.push_back({.flag = flag, .why = std::move(why)});
  };
  if (options.allow_unauthenticated_network) {
    add("--allow_unauthenticated_network", "whoever reaches " + options.listen + " may use it");
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
        "whoever reaches this server may name any tenant in " + options.tenant_header);
  }
  if (options.reflection) add("--reflection", "clients may list the API");
  if (!options.health_listen.empty() && !IsLocalAddress(options.health_listen)) {
    add("--health_listen", "whoever reaches " + options.health_listen +
                               " may ask, in plaintext, whether the server is ready");
  }
  if (!options.metrics_listen.empty() && !IsLocalAddress(options.metrics_listen)) {
    add("--metrics_listen", "whoever reaches " + options.metrics_listen + " may read the metrics");
  }
}

// Why its system calls are not filtered; empty: they are, or nobody expects it.
std::string WhyUnfiltered(const Flags& flags, bool filtered) {
  const SystemCallFilter asked = flags.process.system_call_filter;
  if (asked == SystemCallFilter::kOff) return "whoever takes this process over may start programs";
  if (asked == SystemCallFilter::kAuto && flags.GeneratesCode()) {
    return "auto is off for a backend whose driver compiles at run time, so whoever takes this "
           "process over may start programs; on forbids that";
  }
  if (filtered || !FiltersByDefault(flags.GeneratesCode())) return "";
  return "not in force: there are no such filters here";
}

}  // namespace

std::vector<InsecureChoice> InsecureChoices(const Flags& flags, bool filtered) {
  Choices choices;
  AddOfServer(flags.server, choices);
  if (flags.engine.allow_nonfinite_weights) {
    choices.push_back(
        {.flag = "--allow_nonfinite_weights", .why = "the model's numbers are not checked"});
  }
  if (flags.shows_password) {
    choices.push_back({.flag = "--profile_store",
                       .why = "other users of this host may see its password; give it by "
                              "--profile_store_file"});
  }
  if (flags.process.allow_core_dumps) {
    choices.push_back(
        {.flag = "--allow_core_dumps", .why = "a crash writes prompts and keys to disk"});
  }
  if (std::string why = WhyUnfiltered(flags, filtered); !why.empty()) {
    choices.push_back({.flag = "--system_call_filter", .why = std::move(why)});
  }
  return choices;
}

}  // namespace eta
