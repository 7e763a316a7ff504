// What an operator may choose about the server; the model and its limits are EngineOptions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "service/memory_pressure.h"

namespace eta {

struct ServerOptions {
  // host:port, [IPv6]:port or unix:path. Port 0: any free one, which is printed.
  std::string listen = "127.0.0.1:8471";
  // Calls are neither authenticated nor encrypted, and the HTTP/2 stack is not hardened against
  // hostile peers. Beyond this host that needs a proxy in front that does all three, and this flag.
  bool allow_unauthenticated_network = false;
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

  // The server asks its own health service over new connections: none answered for so long, and
  // "liveness" fails.
  std::chrono::milliseconds self_probe_timeout{30'000};

  MemoryPressureOptions memory;

  // Key of the metadata in which a trusted proxy names a call's tenant; empty: all calls are of
  // kDefaultTenant (call_tenant.h).
  std::string tenant_header;
  // The operator's own: may see what all tenants do (admin_role.h). Needs tenant_header.
  std::vector<std::string> admin_tenants;
  // The profile of requests that name no attention mode, where their tenant has it, as a reference
  // (ParseProfileReference); empty: none.
  std::string default_profile;
  // Profiles stay in use for so long while the store cannot confirm them.
  std::chrono::milliseconds profile_staleness{3'600'000};
  int max_calibrations = 1;                  // at a time; more are refused
  int max_tenant_calibrations = 0;           // of one tenant at a time; 0: max_calibrations
  int64_t max_calibration_tokens = 262'144;  // of all samples of one
  std::chrono::milliseconds default_calibrate_deadline{1'800'000};  // of a call that sets none

  int max_message_bytes = 1 << 20;            // of a request, above it RESOURCE_EXHAUSTED ...
  int max_calibrate_message_bytes = 8 << 20;  // ... but of Calibrate, where there is a store
  int max_metadata_bytes = 8 * 1024;          // of a call
  int max_streams_per_connection = 100;       // calls at a time
  std::chrono::milliseconds keepalive_interval{30'000};        // pings to find dead peers
  std::chrono::milliseconds keepalive_timeout{10'000};         // a ping unanswered: peer is gone
  std::chrono::milliseconds min_client_ping_interval{20'000};  // faster clients are sent away
  std::chrono::milliseconds max_connection_idle{900'000};
  std::chrono::milliseconds max_connection_age{1'800'000};  // then no new calls on it; running ones
                                                            // go on: spreads load after scale-out
};

// INVALID_ARGUMENT, naming the flag, for options of calls that make no sense.
absl::Status CheckCallOptions(const ServerOptions& options);

// INVALID_ARGUMENT, naming the flag: an address of no known form; one that other hosts can reach,
// unless that is allowed.
absl::Status CheckListenAddress(const ServerOptions& options);
absl::Status CheckMetricsAddress(const ServerOptions& options);

}  // namespace eta
