// What an operator may choose about the server; the model and its limits are EngineOptions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/request/limits.h"
#include "service/process/memory_pressure.h"

namespace eta {

struct ServerOptions {
  // host:port, [IPv6]:port or unix:path. Port 0: any free one, which is printed.
  std::string listen = "127.0.0.1:8471";
  // Said aloud, each: other hosts may reach `listen` though calls are not authenticated; though
  // they are not encrypted; they may read the metrics.
  bool allow_unauthenticated_network = false;
  bool allow_plaintext_network = false;
  bool allow_network_metrics = false;

  std::string identity;  // file of who may call (identity_file.h); empty: none
  // PEM files, read again when they change: this server's certificate with what leads to its root,
  // its key, and whose certificates clients must show (mutual TLS). Empty: no TLS, no such demand.
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  // Answers grpc.health.v1 and nothing else, in plaintext, to probes that speak no TLS: host:port
  // or unix:path; empty: nowhere.
  std::string health_listen;
  // Where Prometheus fetches /metrics over HTTP, as host:port; empty: nowhere.
  std::string metrics_listen;
  bool reflection = false;  // lists the API to anybody who asks

  // After a stop signal new calls are still taken for this long, while load balancers see the
  // server's readiness change.
  std::chrono::milliseconds drain_delay{0};
  // Then running calls have this long to end; what is left ends with UNAVAILABLE.
  std::chrono::milliseconds drain_timeout{60'000};
  // Requests run but no step ends for this long: the health service's "liveness" fails. Must be
  // longer than Limits::max_congestion, since a request that waits for its reader takes no steps.
  std::chrono::milliseconds stall_timeout{45'000};

  MemoryPressureOptions memory;

  // Key of the metadata in which a trusted proxy names a call's tenant (identity.h); empty: none.
  std::string tenant_header;
  // Of these, where that metadata names them, all roles are had, also stats_all and admin.
  std::vector<std::string> admin_tenants;
  // The profile of requests that name no attention mode, where their tenant has it, as a reference
  // (ParseProfileReference); empty: none.
  std::string default_profile;
  // Profiles stay in use for so long while the store cannot confirm them.
  std::chrono::milliseconds profile_staleness{3'600'000};
  int max_calibrations = 1;                  // at a time; more are refused
  int64_t max_calibration_tokens = 262'144;  // of all samples of one

  // Of a request, above it RESOURCE_EXHAUSTED. Calibrate and ImportProfile have their own.
  int max_message_bytes = 1 << 20;
  int max_connections = 0;  // at a time, more are closed at once; 0: Acceptor::kDefaultMax has it
  // Of one address (IPv6: of its first 64 bits); 0: no such limit. Not of a Unix socket.
  int max_connections_per_peer = 0;
  int socket_mode = 0600;  // of the file, where `listen` is a Unix socket
  std::chrono::milliseconds keepalive_interval{30'000};     // pings to find dead peers
  std::chrono::milliseconds max_connection_age{1'800'000};  // then no new calls on it; running ones
                                                            // go on: spreads load after scale-out

  // No flags, only shorter in tests:
  // Of a Calibrate call that sets none.
  std::chrono::milliseconds default_calibrate_deadline{1'800'000};
  // The server asks its own health service over new connections: none answered for so long, and
  // "liveness" fails.
  std::chrono::milliseconds self_probe_timeout{30'000};
  // So long after its age a connection ends with the calls that still run. 0: as long as a call
  // without a deadline of its own may last, and its reader.
  std::chrono::milliseconds max_connection_age_grace{0};
};

// INVALID_ARGUMENT, naming the flag, for options of calls that make no sense.
absl::Status CheckCallOptions(const ServerOptions& options);

// Whether only processes of this host can reach an address of a known form.
bool IsLocalAddress(const std::string& address);

// INVALID_ARGUMENT, naming the flag: an address of no known form; one that other hosts can reach,
// unless calls are authenticated and encrypted, or a flag allows for what is missing; a flag that
// has no effect at this address.
absl::Status CheckListenAddress(const ServerOptions& options);
absl::Status CheckMetricsAddress(const ServerOptions& options);
absl::Status CheckHealthAddress(const ServerOptions& options);

// All of these, and how the options fit the limits: what can be said without reading a file.
absl::Status CheckOptions(const ServerOptions& options, const Limits& limits);

}  // namespace eta
