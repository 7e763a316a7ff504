// Flags of who may reach the server, and how it knows them.
#include "service/options/flag_groups.h"
#include "service/options/flag_kinds.h"

namespace eta {

void AddAccessFlags(CLI::App& app, ServerOptions& options) {
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
  app.add_option(
         "--tenant_header", options.tenant_header,
         "Metadata key in which a proxy names the tenant of a call: one of --identity, or, "
         "without --identity, whoever reaches the server (only this host, or whom "
         "--allow_unauthenticated_network lets in). Without it and --identity all calls are "
         "of tenant \"default\"")
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
}

}  // namespace eta
