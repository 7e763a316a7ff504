// Flags of listeners for gateways.
#include "service/options/flag_groups.h"
#include "service/options/flag_kinds.h"

namespace eta {

void AddGatewayFlags(CLI::App& app, ServerOptions& options) {
  app.add_option("--vllm_listen", options.vllm_listen,
                 "Address where model gateways reach this server (vllm.grpc.engine): as --listen, "
                 "then =NAME for the model's name there, then :full, :dynamic or :profile:NAME for "
                 "how requests attend; several with commas. Local addresses have no TLS. Default: "
                 "none")
      ->delimiter(',')
      ->type_name("ADDRESS");
  app.add_option("--vllm_tenant", options.vllm_tenant,
                 "Tenant of the calls there that show no credential")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_flag("--vllm_route", options.vllm_route,
               "Calls there that show no credential have the role route beside generate: they see "
               "and drop what the prefix cache holds of all tenants");
  AddCount(app, "--vllm_max_tokens", options.vllm_max_tokens,
           "Largest number of tokens of an answer there whose length the request does not name");
}

}  // namespace eta
