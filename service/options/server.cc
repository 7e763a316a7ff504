// Flags of the server's life and of its connections.
#include "service/options/flag_groups.h"
#include "service/options/flag_kinds.h"

namespace eta {
namespace {

void AddConnectionFlags(CLI::App& app, ServerOptions& options) {
  AddBytes(app, "--max_message_bytes", options.max_message_bytes, "Largest request message");
  AddBytes(app, "--max_metadata_bytes", options.max_metadata_bytes, "Largest metadata of a call");
  AddBytes(
      app, "--max_unread_answer_bytes", options.max_unread_answer_bytes,
      "Answers of calls but streams that clients have not read yet; a tenant with a quarter of "
      "it unread, a 64th where it is used up, is refused more with RESOURCE_EXHAUSTED");
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
  AddDuration(
      app, "--max_connection_age_grace", options.max_connection_age_grace,
      "Then they have this long until the connection is closed. 0: as long as the longer of "
      "--default_deadline and --default_calibrate_deadline, and --slow_reader_timeout");
}

}  // namespace

void AddServerFlags(CLI::App& app, ServerOptions& options) {
  AddShare(app, "--max_memory_fraction", options.memory.max_fraction, 0.99,
           "Share of the memory that this process may use (its control group's limit, if it has "
           "one) above which calls are refused with RESOURCE_EXHAUSTED. A tenth below it fewer "
           "requests may wait, then no calibration begins; half way above it the largest answers "
           "are given up");
  AddAccessFlags(app, options);
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
  AddConnectionFlags(app, options);
}

}  // namespace eta
