#include "service/insecure_choices.h"

namespace eta {

std::vector<InsecureChoice> InsecureChoices(const ServerOptions& options) {
  std::vector<InsecureChoice> choices;
  const bool local = IsLocalAddress(options.listen);
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
  if (!options.tenant_header.empty() && (local || options.allow_unauthenticated_network)) {
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
  return choices;
}

}  // namespace eta
