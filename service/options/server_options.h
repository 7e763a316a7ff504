// An operator's choices about the server. Choices about the model and its limits are EngineOptions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/request/limits.h"
#include "service/kv_events/kv_event_options.h"
#include "service/process/memory_pressure.h"

namespace eta {

struct ServerOptions {
  // host:port, [IPv6]:port or unix:path. Port 0 means any free port, which is printed.
  std::string listen = "127.0.0.1:8471";
  // Each of these must be stated explicitly: other hosts may reach `listen` although calls are not
  // authenticated; the same although they are not encrypted; other hosts may read the metrics.
  bool allow_unauthenticated_network = false;
  bool allow_plaintext_network = false;
  bool allow_network_metrics = false;

  std::string identity;  // file of who may call (identity_file.h); empty: none
  // PEM files, read again when they change: the server's certificate with the chain to its root,
  // its key, and the roots of the certificates that clients must show (mutual TLS). Empty: no TLS;
  // no client certificates.
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  // Where grpc.health.v1, and nothing else, is answered in plaintext, for probes without TLS:
  // host:port or unix:path. Empty: nowhere.
  std::string health_listen;
  // Where Prometheus scrapes /metrics over HTTP: host:port. Empty: nowhere.
  std::string metrics_listen;
  KvEventOptions kv_events;
  // Where spans of calls go, by OTLP over gRPC: http://host:port in plaintext, https://host:port
  // over TLS. Empty: nowhere.
  std::string otlp_endpoint;
  // Of the calls that come without a trace, the share that begins one. Whether a caller's trace is
  // sampled, its caller has said.
  double otlp_sampling = 1.0;
  bool reflection = false;  // lists the API to everybody who asks

  // After a stop signal new calls are accepted for this long, while load balancers notice that the
  // server is not ready any more.
  std::chrono::milliseconds drain_delay{0};
  // Running calls then have this long to end. The remaining calls end with UNAVAILABLE.
  std::chrono::milliseconds drain_timeout{60'000};
  // If requests run but no step ends for this long, the health service's "liveness" fails. It must
  // be longer than Limits::max_congestion, since a request that waits for its reader takes no
  // steps.
  std::chrono::milliseconds stall_timeout{45'000};

  MemoryPressureOptions memory;

  // The metadata key in which a trusted proxy names a call's tenant (identity.h); empty: none.
  std::string tenant_header;
  // The tenants that get all roles, also stats_all and admin, if that metadata names them.
  std::vector<std::string> admin_tenants;
  // The profile, as a reference (ParseProfileReference), of requests that name no attention mode,
  // if their tenant has it. Empty: none.
  std::string default_profile;
  // Profiles stay in use for this long while the store cannot confirm them.
  std::chrono::milliseconds profile_staleness{3'600'000};
  int max_calibrations = 1;   // at a time; more are refused
  int tokenizer_threads = 0;  // 0: half of the CPUs, 1 to 8
  // One with a request id goes on for so long without a caller; 0: it ends with its last one.
  std::chrono::milliseconds calibration_orphan_timeout{300'000};
  int64_t max_calibration_tokens = 262'144;  // of all samples of one

  // Of a request, above it RESOURCE_EXHAUSTED. Calibrate and ImportProfile have their own.
  int max_message_bytes = 1 << 20;
  // Where vllm.grpc.engine is answered, for gateways: ADDRESS[=NAME[:ATTENTION]] (vllm_listen.h).
  // Empty: nowhere.
  std::vector<std::string> vllm_listen;
  // Whose a call there is that shows no credential. With `identity` its role is generate, and route
  // if the operator says so.
  std::string vllm_tenant = "default";
  bool vllm_route = false;
  int32_t vllm_max_tokens = 4096;  // of an answer there whose length nobody named

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

// INVALID_ARGUMENT, naming the flag, for options of calls that contradict each other.
absl::Status CheckCallOptions(const ServerOptions& options);

// True if only processes of this host can reach the address.
bool IsLocalAddress(const std::string& address);

// INVALID_ARGUMENT, naming the flag: an address of no known form; an address that other hosts can
// reach, unless calls are authenticated and encrypted or a flag allows what is missing; a flag that
// has no effect at this address.
absl::Status CheckListenAddress(const ServerOptions& options);
absl::Status CheckMetricsAddress(const ServerOptions& options);
absl::Status CheckHealthAddress(const ServerOptions& options);
absl::Status CheckVllmListen(const ServerOptions& options);
absl::Status CheckKvEventAddresses(const KvEventOptions& options);
// INVALID_ARGUMENT, naming the flag.
absl::Status CheckOtlp(const ServerOptions& options);

// host:port of otlp_endpoint.
std::string OtlpAddress(const ServerOptions& options);
// Whether spans are encrypted on their way.
bool OtlpByTls(const ServerOptions& options);

// All checks above, and how the options fit the limits: whatever can be checked without reading a
// file.
absl::Status CheckOptions(const ServerOptions& options, const Limits& limits);

}  // namespace eta
