// Flags of who may reach the server, and how it identifies them.
#include "service/options/flag_groups.h"
#include "service/options/flag_kinds.h"

namespace eta {

void AddAccessFlags(CLI::App& app, ServerOptions& options) {
  app.add_option("--listen", options.listen,
                 "Address to listen on: host:port, [IPv6]:port or unix:path. Port 0 takes a free "
                 "port and prints it")
      ->type_name("ADDRESS")
      ->capture_default_str();
  AddChoice<int>(
      app, "--socket_mode", options.socket_mode, {{"0600", 0600}, {"0660", 0660}, {"0666", 0666}},
      "0600",
      "File mode of the Unix socket of --listen: its owner may connect, its group too, or every "
      "user");
  app.add_flag(
      "--allow_unauthenticated_network", options.allow_unauthenticated_network,
      "Other hosts may reach --listen although calls are not authenticated. A proxy in front must "
      "authenticate them");
  app.add_flag("--allow_plaintext_network", options.allow_plaintext_network,
               "Other hosts may reach --listen although calls are not encrypted. A proxy or a mesh "
               "in front must encrypt them");
  app.add_option("--tls_cert", options.tls_cert,
                 "File (PEM) of the server's certificate and its chain; read again when it "
                 "changes. Calls are encrypted with TLS 1.2 or 1.3. Default: no TLS")
      ->type_name("FILE");
  app.add_option("--tls_key", options.tls_key,
                 "File (PEM, not encrypted) of the private key of --tls_cert; read again when it "
                 "changes")
      ->type_name("FILE");
  app.add_option("--tls_client_ca", options.tls_client_ca,
                 "File (PEM) of root certificates; read again when it changes. Clients must show a "
                 "certificate that leads to one of them. Default: clients need none")
      ->type_name("FILE");
  app.add_option("--identity", options.identity,
                 "File (JSON) of who may call and in which roles: API keys, token issuers and "
                 "peers; read again when it changes. Default: none, and nobody is asked")
      ->type_name("FILE");
  app.add_option(
         "--tenant_header", options.tenant_header,
         "Metadata key in which a proxy names the tenant of a call. With --identity only its "
         "proxies are believed, without it whoever reaches the server. Default: none")
      ->type_name("KEY");
  app.add_option("--admin_tenants", options.admin_tenants,
                 "Tenants of --tenant_header that are the operator's, as in ops,oncall. They see "
                 "the Stats of all tenants and set the log level. Default: none")
      ->delimiter(',')
      ->type_name("NAME");
  app.add_option("--health_listen", options.health_listen,
                 "Second address, without TLS, that answers health checks and nothing else; "
                 "usually port 8473. Default: none")
      ->type_name("ADDRESS");
  app.add_flag("--allow_network_metrics", options.allow_network_metrics,
               "Other hosts may reach --metrics_listen");
  app.add_flag("--reflection", options.reflection, "Clients may list the API (gRPC reflection)");
}

}  // namespace eta
